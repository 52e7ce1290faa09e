"""What may be done to a model, as a problem for the planner, and what it chose, as a plan that can be made."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.reshape.cut import units
from compress.fit.cost.blocks import Blocks
from compress.fit.cost.serving import FLOAT, Bits, InputRanges
from compress.fit.loss.study import PARTS, Study, Vocabulary
from compress.fit.make import joined_layers
from compress.fit.make.joined_layers import Join
from compress.fit.plan.planner import TOGETHER, Choice, Layer, Options, Planner, Problem, Run, Shape

NEURON_STEPS = 24
"""Numbers of neurons that a layer may keep, beside one."""
LEAST_SHARE = 0.3
"""Of the milliseconds of layers, the least that static ranges are believed to leave."""


@dataclass(frozen=True)
class Scales:
    """How planned losses become measured ones. shape: of the sum over layers.  drops: the loss of a layer that goes,
    the others fitted anew, over the loss without that."""

    shape: Shape = field(default_factory=Shape)
    drops: float = 1.0


@dataclass(frozen=True)
class Plan:
    """heads, neurons: by unit of the whole model, 0 where its layer goes.  bits: (attention, feed-forward) by unit.

    vocabulary: name of the cut.  word: bits of the word table.  rank: width of factorized embeddings, 0 for none.
    ms, mb, loss: as planned.  joined: layers that share their matrices with the next one.  ranges: of the inputs of
    matrices in 8 bits.
    """

    layers: tuple[int, ...]
    heads: tuple[int, ...]
    neurons: tuple[int, ...]
    attention_bits: tuple[int, ...]
    feed_forward_bits: tuple[int, ...]
    vocabulary: str
    rows: int
    word: int
    rank: int
    ms: float
    mb: float
    loss: float
    joined: tuple[int, ...] = ()
    ranges: InputRanges = "per-token"

    @property
    def key(self) -> str:
        """The same for plans that make the same model, also of an earlier version that knew no other ranges."""
        made = {k: v for k, v in asdict(self).items() if k not in ("ms", "mb", "loss")}
        if self.ranges == "per-token":
            del made["ranges"]
        return hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]

    def sentence(self, whole: EncoderConfig) -> str:
        """What it does, in words."""
        every = [
            sum(x) / max(1, sum(y))
            for x, y in ((self.heads, _all(whole, "heads")), (self.neurons, _all(whole, "feed_forward")))
        ]
        said = (
            [f"{len(self.layers)} of {whole.depth} layers"]
            if len(self.layers) < whole.depth
            else [f"{whole.depth} layers"]
        )
        said.append(f"{100 * every[0]:.0f} % of heads, {100 * every[1]:.0f} % of neurons")
        said += [f"layers {i} and {i + 1} share parameters" for i in self.joined]
        said.append(
            f"{self.rows:,} of {whole.vocabulary:,} tokens" if self.rows < whole.vocabulary else "full vocabulary"
        )
        if self.rank:
            said.append(f"embeddings of width {self.rank}")
        used = sorted(
            {
                b
                for b, n in zip(self.attention_bits + self.feed_forward_bits, self.heads + self.neurons, strict=True)
                if n
            }
        )
        said.append("matrices " + " and ".join(_bits(b) for b in used))
        if self.word not in used:
            said.append(f"word embeddings {_bits(self.word)}")
        if self.ranges == "static":
            said.append("static input ranges")
        return "; ".join(said)

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "key": self.key}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Plan:
        """The inverse of `as_json`."""
        made: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in found.items() if k != "key"}
        return cls(**made)

    def modules(self, config: EncoderConfig) -> Bits:
        """How the made model is rounded. config: of the whole model."""
        patterns: dict[str, int] = {}
        place = {layer: at for at, layer in enumerate(self.layers)}
        for part, bits in zip(PARTS, (self.attention_bits, self.feed_forward_bits), strict=True):
            for unit, count in zip(units(config, part), bits, strict=True):
                for layer in unit:
                    if layer in place:
                        made = place[layer] if _plain(config) else config.groups[layer]
                        patterns[f"encoder.layers.{made}.{part}.*"] = count
        usual = max(set(patterns.values()), key=list(patterns.values()).count)
        return Bits(patterns, self.word, FLOAT if usual == FLOAT else 8, self.ranges)


def _bits(bits: int) -> str:
    return "float" if bits == FLOAT else f"int{bits}"


def _all(config: EncoderConfig, name: str) -> list[int]:
    part = PARTS[0] if name == "heads" else PARTS[1]
    return [getattr(config.layers[unit[0]], name) for unit in units(config, part)]


def _plain(config: EncoderConfig) -> bool:
    """Whether every layer has matrices of its own."""
    return all(len(unit) == 1 for part in PARTS for unit in units(config, part))


@dataclass(frozen=True)
class Ranges:
    """How inputs of matrices in 8 bits are rounded. share: of the milliseconds that a scale for each token takes.
    loss: nats that each unit loses more than with one."""

    kind: InputRanges = "per-token"
    share: float = 1.0
    loss: float = 0.0


class Space:
    """What may be done to one model, at what cost. factor, extra: a model takes the sum of its blocks times the one and
    the other more, in milliseconds."""

    def __init__(
        self,
        study: Study,
        blocks: Blocks,
        factor: float = 1.0,
        scales: Scales | None = None,
        extra: float = 0.0,
        ranges: Ranges | None = None,
    ) -> None:
        self.study, self.blocks, self.factor, self.scales = study, blocks, factor, scales or Scales()
        self.extra, self.ranges = extra, ranges or Ranges()
        self.base = blocks.ms * factor + extra
        self.config = study.loaded.config
        self._attention = [
            self._options("attention", unit, counts)
            for unit, counts in enumerate(map(_heads, _all(self.config, "heads")))
        ]
        self._inner = [
            self._options("feed_forward", unit, counts)
            for unit, counts in enumerate(map(_neurons, _all(self.config, "feed_forward")))
        ]
        self._joins = [(join, *self._joined(join)) for join in study.joins]
        self._tables = [
            (vocabulary, bits, rank)
            for vocabulary in study.vocabularies
            for bits in study.tables
            for rank in study.ranks
            if (bits, rank) in blocks.embeddings
        ]

    def problem(self) -> Problem:
        """For the planner."""
        if _plain(self.config):
            drops = list(self.study.drops or [None] * self.config.depth)
            if self.blocks.last != self.blocks.layer:
                drops[-1] = None  # the last one costs least
            layers = [
                Layer(a[0], f[0], self._dropped(d)) for a, f, d in zip(self._attention, self._inner, drops, strict=True)
            ]
            runs = [Run(join.first, 2, options) for join, options, _ in self._joins]
        else:
            runs = []
            layers = [Layer(a[0], Options.none()) for a in self._attention]
            layers += [Layer(Options.none(), f[0]) for f in self._inner]
        rows = [self._table(*x) for x in self._tables]
        embedding = Options(*(np.array([row[i] for row in rows]) for i in range(3)))
        return Problem(layers, embedding, self.base, self.blocks.mb, self.scales.shape, runs)

    def _dropped(self, alone: float | None) -> float | None:
        """In the unit that heads and neurons are counted in."""
        if alone is None or not np.isfinite(alone):
            return None
        return self.scales.shape.inverse(alone * self.scales.drops)

    def probe(self, part: float) -> tuple[Plan, float]:
        """All layers, at so much of the way from the least to the most milliseconds, and the sum of what that loses."""
        problem = self.problem()
        layers = [dataclasses.replace(layer, drop=None) for layer in problem.layers]
        first = self._tables.index((self.study.vocabularies[0], next(iter(self.study.tables)), 0))
        e = problem.embedding
        one = Options(e.ms[first : first + 1], e.mb[first : first + 1], np.zeros(1))
        problem = dataclasses.replace(problem, layers=layers, embedding=one, shape=Shape(), runs=())
        least, most = problem.lower_bounds[0], self.plan_whole_model(next(iter(self.study.matrices))).ms
        choice = Planner(problem, least + part * (most - least)).best(1)[0]
        return self.plan(dataclasses.replace(choice, embedding=first)), choice.loss

    def plan(self, choice: Choice) -> Plan:
        """What was chosen, as numbers that can be made."""
        vocabulary, word, rank = self._tables[choice.embedding]
        runs = [(self._joins[run][0].first, self._joins[run][2][option]) for run, option in choice.runs]
        together = {layer: bits for first, bits in runs for layer in (first, first + 1)}
        plain = _plain(self.config)

        def made(place: int, ways: Sequence[tuple[Options, list[tuple[int, int]]]], name: str) -> list[tuple[int, int]]:
            """(count, bits) of each unit's attention or feed-forward part."""
            start = 0 if plain else place * len(self._attention)
            found = []
            for unit, ((_, names), most) in enumerate(zip(ways, _all(self.config, name), strict=True)):
                pick = choice.layers[start + unit]
                if pick is None:
                    found.append((0, FLOAT))
                else:
                    found.append((most, together[unit][place]) if pick == TOGETHER else names[pick[place]])
            return found

        heads, first = zip(*made(0, self._attention, "heads"), strict=True)
        neurons, second = zip(*made(1, self._inner, "feed_forward"), strict=True)
        kept = tuple(i for i in range(self.config.depth) if not plain or choice.layers[i] is not None)
        return Plan(
            kept, heads, neurons, first, second, vocabulary.name, vocabulary.rows, word, rank,
            choice.ms, choice.mb, choice.loss, tuple(first for first, _ in runs), self.ranges.kind,
        )  # fmt: skip

    def plan_whole_model(self, bits: int, vocabulary: Vocabulary | None = None, word: int | None = None) -> Plan:
        """Everything kept, in so many bits: the model quantized alone."""
        chosen = vocabulary or self.study.vocabularies[0]
        heads, neurons = _all(self.config, "heads"), _all(self.config, "feed_forward")
        word = word if word is not None else (bits if bits in self.study.tables else FLOAT)
        ms, mb, loss = self._table(chosen, word, 0)
        for options, counts in ((self._attention, heads), (self._inner, neurons)):
            for (table, names), count in zip(options, counts, strict=True):
                at = names.index((count, bits))
                ms, mb, loss = ms + table.ms[at], mb + table.mb[at], loss + table.loss[at]
        ms, mb = ms + self.base, mb + self.blocks.mb
        return Plan(
            tuple(range(self.config.depth)), tuple(heads), tuple(neurons), (bits,) * len(heads), (bits,) * len(neurons),
            chosen.name, chosen.rows, word, 0, float(ms), float(mb), float(loss), ranges=self.ranges.kind,
        )  # fmt: skip

    def in_few_bits(self, whole: Plan, bits: int, vocabulary: Vocabulary) -> Plan:
        """The plan of the whole model with matrices and word table in so few bits that it must be trained, as fast as
        in 8 bits: products are the same. What it loses is not planned: that of its vocabulary alone is known."""
        units = len(whole.attention_bits), len(whole.feed_forward_bits)
        return dataclasses.replace(
            whole, attention_bits=(bits,) * units[0], feed_forward_bits=(bits,) * units[1], word=bits,
            vocabulary=vocabulary.name, rows=vocabulary.rows, loss=vocabulary.loss,
        )  # fmt: skip

    def with_static_ranges(self, ms: float, loss: float) -> Space:
        """The same where plans have static input ranges. ms: what the whole model in 8 bits takes with these.  loss:
        nats that it is farther from the parent than with a scale for each token. Each unit has its share of both."""
        whole = self.plan_whole_model(8)
        layers = whole.ms - self.base - self._table(self.study.vocabularies[0], whole.word, 0)[0]
        share = max(LEAST_SHARE, 1 - (whole.ms - ms) / layers)
        ranges = Ranges("static", share, max(0.0, loss) / (len(self._attention) + len(self._inner)))
        return Space(self.study, self.blocks, self.factor, self.scales, self.extra, ranges)

    def vocabulary(self, name: str) -> Vocabulary:
        return next(v for v in self.study.vocabularies if v.name == name)

    def _options(self, part: str, unit: int, counts: Sequence[int]) -> tuple[Options, list[tuple[int, int]]]:
        """Of one unit: costs and losses, and (count, bits) of each."""
        members = units(self.config, part)[unit]
        tables, ends = (getattr(cost, part) for cost in (self.blocks.layer, self.blocks.last))
        last = self.config.depth - 1 in members
        curve = (self.study.heads if part == "attention" else self.study.neurons)[unit]
        names, columns = [], [[], [], []]
        for bits, losses in self.study.matrices.items():
            ms, mb = tables[bits].at(np.asarray(counts))
            ms = ms * (len(members) - last) + (ends[bits].at(np.asarray(counts))[0] if last else 0.0)
            lost = losses[part, unit]
            if bits == 8:
                ms, lost = ms * self.ranges.share, lost + self.ranges.loss
            loss = curve[np.asarray(counts)] + self.scales.shape.inverse(lost)
            names += [(n, bits) for n in counts]
            for column, found in zip(columns, (ms * self.factor, mb, loss), strict=True):
                column.append(found)
        return Options(*(np.concatenate(column) for column in columns)), names

    def _joined(self, join: Join) -> tuple[Options, list[tuple[int, int]]]:
        """Of a pair with all its heads and neurons: costs and losses, and (attention, feed-forward) bits."""
        parts = []
        for part, ways in zip(PARTS, (self._attention, self._inner), strict=True):
            most = _all(self.config, "heads" if part == "attention" else "feed_forward")[join.first]
            found = {}
            for unit in (join.first, join.first + 1):
                options, names = ways[unit]
                for bits in self.study.matrices:
                    at = names.index((most, bits))
                    ms, _, loss = found.get(bits, (0.0, 0.0, 0.0))
                    found[bits] = (ms + options.ms[at], options.mb[at], loss + options.loss[at])
            parts.append(found)
        config, lost = self.config, self.scales.shape.inverse(join.loss)
        # Residuals are products of their own, in floats.
        slower = 1 + joined_layers.residual_share(config, join.first)
        own, names, rows = joined_layers.own_megabytes(config, join.first), [], []
        for first, a in parts[0].items():
            for second, f in parts[1].items():
                names.append((first, second))
                rows.append((slower * (a[0] + f[0]), a[1] + f[1] + own, a[2] + f[2] + lost))
        return Options(*(np.array([row[i] for row in rows]) for i in range(3))), names

    def _table(self, vocabulary: Vocabulary, bits: int, rank: int) -> tuple[float, float, float]:
        cost = self.blocks.embeddings[bits, rank]
        loss = vocabulary.loss + self.study.tables[bits] + self.study.ranks[rank]
        return cost.ms * self.factor, cost.mb + cost.row_mb * vocabulary.rows, loss


def _heads(most: int) -> list[int]:
    return list(range(1, most + 1))


def _neurons(most: int) -> list[int]:
    return np.unique(np.linspace(0, most, NEURON_STEPS + 1).round().astype(int).clip(1)).tolist()
