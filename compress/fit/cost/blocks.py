"""What each part of a model costs where it will be served: milliseconds and bytes of building blocks.

What a whole model takes is the sum, times a factor and with a constant that two real models give; how far such a sum
may be off is known from larger models that it was checked against.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from evaluation.quality.intervals import mean_interval


@dataclass(frozen=True)
class Curve:
    """counts: ascending, from 1.  ms, mb: of so many."""

    counts: tuple[int, ...]
    ms: tuple[float, ...]
    mb: tuple[float, ...]

    def at(self, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) milliseconds, which never fall with the count, and megabytes."""
        ms = np.maximum.accumulate(np.asarray(self.ms))
        return np.interp(wanted, self.counts, ms), np.interp(wanted, self.counts, np.asarray(self.mb))


@dataclass(frozen=True)
class LayerCost:
    """Of one layer, bits → attention by heads, all else of the layer but its neurons included, and neurons alone."""

    attention: Mapping[int, Curve]
    feed_forward: Mapping[int, Curve]

    def as_json(self) -> dict[str, Any]:
        return {part: {str(k): dataclasses.asdict(v) for k, v in curves.items()} for part, curves in vars(self).items()}

    @classmethod
    def from_json(cls, found: Any) -> LayerCost:
        """Raises KeyError, TypeError, ValueError or AttributeError for what is none."""
        attention, feed_forward = (
            {int(k): Curve(tuple(v["counts"]), tuple(v["ms"]), tuple(v["mb"])) for k, v in found[part].items()}
            for part in ("attention", "feed_forward")
        )
        return cls(attention, feed_forward)


@dataclass(frozen=True)
class TableCost:
    """The embeddings, cut in one way: milliseconds above those of the usual one, megabytes without the word rows, and
    of one of them."""

    ms: float
    mb: float
    row_mb: float


@dataclass(frozen=True)
class Blocks:
    """layer: any but the last.  last: the last one, of which a file computes the first token alone where the head reads
    no other; its least milliseconds are in `ms`.  embeddings: (bits, rank or 0) of the word table.  ms, mb: of all
    else.  busy: whether something else used the processor while it was measured.  checks: measured milliseconds of
    larger models, of other shapes, over the sum of their blocks."""

    layer: LayerCost
    last: LayerCost
    embeddings: Mapping[tuple[int, int], TableCost]
    ms: float
    mb: float
    busy: bool
    checks: tuple[float, ...] = ()

    @property
    def margin(self) -> float:
        """By how many times a model whose sum was corrected by a factor may be faster or slower than that, in 95 of
        100 cases: from how the checks scatter about their own mean, with Student's quantile for so few."""
        found = mean_interval(np.log(self.checks))
        return math.exp((found.high - found.low) / 2 * math.sqrt(len(self.checks) + 1))

    def as_json(self) -> dict[str, Any]:
        return {
            "layer": self.layer.as_json(), "last": self.last.as_json(),
            "embeddings": {f"{b}/{r}": dataclasses.asdict(v) for (b, r), v in self.embeddings.items()},
            "ms": self.ms, "mb": self.mb, "busy": self.busy, "checks": list(self.checks),
        }  # fmt: skip

    @classmethod
    def from_json(cls, found: Any, where: str) -> Blocks:
        """Raises UserError for what is no table."""
        try:
            layer, last = (LayerCost.from_json(found[name]) for name in ("layer", "last"))
            tables = {}
            for name, row in found["embeddings"].items():
                bits, rank = name.split("/")
                tables[int(bits), int(rank)] = TableCost(float(row["ms"]), float(row["mb"]), float(row["row_mb"]))
            checks = tuple(map(float, found["checks"]))
            ms, mb, busy = float(found["ms"]), float(found["mb"]), bool(found["busy"])
            return cls(layer, last, tables, ms, mb, busy, checks)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise UserError(
                "not a valid cost table", where=where, do="remove the file; it will be measured again"
            ) from None


def add_weighted(tables: Sequence[tuple[float, Blocks]]) -> Blocks:
    """The sum of milliseconds of (weight, table) of the same models; bytes are the same in all of them."""
    if len(tables) == 1 and tables[0][0] == 1:
        return tables[0][1]
    first = tables[0][1]
    weights = np.array([weight for weight, _ in tables])

    def curves(read: Callable[[Blocks], Mapping[int, Curve]]) -> dict[int, Curve]:
        return {
            bits: dataclasses.replace(curve, ms=tuple((weights @ [read(b)[bits].ms for _, b in tables]).tolist()))
            for bits, curve in read(first).items()
        }

    layer = LayerCost(curves(lambda b: b.layer.attention), curves(lambda b: b.layer.feed_forward))
    last = LayerCost(curves(lambda b: b.last.attention), curves(lambda b: b.last.feed_forward))
    embeddings = {
        key: dataclasses.replace(cost, ms=float(weights @ [b.embeddings[key].ms for _, b in tables]))
        for key, cost in first.embeddings.items()
    }
    shares = weights * [_full_layer(b) for _, b in tables]
    checks = shares / shares.sum() @ np.array([b.checks for _, b in tables])
    ms, busy = float(weights @ [b.ms for _, b in tables]), any(b.busy for _, b in tables)
    return Blocks(layer, last, embeddings, ms, first.mb, busy, tuple(checks.tolist()))


def _full_layer(blocks: Blocks) -> float:
    """Milliseconds of a model of one full layer: by these errors at several lengths are averaged."""
    attention, inner = (next(iter(curves.values())) for curves in (blocks.layer.attention, blocks.layer.feed_forward))
    return blocks.ms + attention.ms[-1] + inner.ms[-1]


def ranks(config: EncoderConfig) -> tuple[int, ...]:
    """Widths that the embeddings may be factorized to: two thirds, a half and a third of the hidden states, in
    multiples of 32; none where they cannot be."""
    if config.width != config.hidden or config.positions not in ("learned", "rotary", "none"):
        return ()
    found = {int(config.hidden * part / 32) * 32 for part in (2 / 3, 1 / 2, 1 / 3)}
    return tuple(sorted((n for n in found if 32 <= n < config.hidden), reverse=True))
