"""Cost of each head and neuron in parameters or operations, additive over the model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.reshape.cut import COUNTED, units


@dataclass(frozen=True)
class Counts:
    """How many heads and how many neurons stay in each unit."""

    heads: tuple[int, ...]
    neurons: tuple[int, ...]

    @classmethod
    def of(cls, config: EncoderConfig) -> Counts:
        """What a model has."""
        found = [
            tuple(getattr(config.layers[u[0]], name) for u in units(config, part)) for part, name in COUNTED.items()
        ]
        return cls(*found)


@dataclass(frozen=True)
class Costs:
    """fixed: of all that stays in any case.  heads, neurons: for each unit, (n+1,) what 0..n of them cost in all its
    layers.  unit: what the numbers are, for people."""

    fixed: float
    heads: tuple[np.ndarray, ...]
    neurons: tuple[np.ndarray, ...]
    unit: str

    def of(self, counts: Counts) -> float:
        """The model's, with so many heads and neurons."""
        found = [float(table[n]) for table, n in zip(self.heads, counts.heads, strict=True)]
        found += [float(table[n]) for table, n in zip(self.neurons, counts.neurons, strict=True)]
        return self.fixed + sum(found)

    @property
    def minimum(self) -> float:
        """With one head and one neuron in each unit."""
        return self.of(Counts((1,) * len(self.heads), (1,) * len(self.neurons)))

    @property
    def maximum(self) -> float:
        """With all of them."""
        return self.of(Counts(tuple(len(t) - 1 for t in self.heads), tuple(len(t) - 1 for t in self.neurons)))


def parameters(config: EncoderConfig, heads: Mapping[str, HeadConfig]) -> Costs:
    """Of the encoder and its heads."""
    whole = config.count_parameters()
    counts = Counts.of(config)
    tables: dict[str, list[np.ndarray]] = {"attention": [], "feed_forward": []}
    for part, name in COUNTED.items():
        for unit in units(config, part):
            layers = list(config.layers)
            for layer in unit:
                layers[layer] = dataclasses.replace(layers[layer], **{name: getattr(layers[layer], name) + 1})
            one = dataclasses.replace(config, layers=tuple(layers)).count_parameters() - whole
            tables[part].append(one * np.arange(getattr(config.layers[unit[0]], name) + 1, dtype=np.float64))
    taken = sum(float(table[-1]) for part in tables.values() for table in part)
    total = whole + sum(head.count_parameters(config) for head in heads.values())
    made = Costs(total - taken, tuple(tables["attention"]), tuple(tables["feed_forward"]), "parameters")
    assert abs(made.of(counts) - total) < 1
    return made


def operations(config: EncoderConfig, heads: Mapping[str, HeadConfig], length: int) -> Costs:
    """Of one sequence of `length` tokens answered by the task head; a multiply-add counts as two."""
    tables: dict[str, list[np.ndarray]] = {"attention": [], "feed_forward": []}
    rank = 0 if config.sharing is None else config.sharing.residual_rank
    for part, name in COUNTED.items():
        for unit in units(config, part):
            shared = rank if len(unit) > 1 else 0
            each: float = sum(_one(config, layer, part, length, shared) for layer in unit)
            first = config.layers[min(unit)]
            tables[part].append(each * np.arange(getattr(first, name) + 1, dtype=np.float64))
    fixed = 0.0
    if config.width != config.hidden:
        fixed += 2 * length * config.width * config.hidden
    if rank:
        fixed += _residuals(config, length, rank)
    head = heads.get("task")
    if head is not None:
        fixed += _head(config, head, length)
    return Costs(fixed, tuple(tables["attention"]), tuple(tables["feed_forward"]), "operations")


def _one(config: EncoderConfig, layer: int, part: str, length: int, rank: int) -> float:
    """Of one head, or one neuron, of a layer."""
    if part == "feed_forward":
        return 2 * length * (config.hidden + rank) * (3 if config.gated else 2)
    width = config.layers[layer].head_width
    return 2 * length * 4 * (config.hidden + rank) * width + 4 * length * length * width


def _residuals(config: EncoderConfig, length: int, rank: int) -> float:
    """Of the residuals' sides that no cut narrows: what reads and writes the hidden states."""
    total = 0.0
    for part, sides in (("attention", 4), ("feed_forward", 2)):
        total += sum(2 * length * config.hidden * rank * sides * len(u) for u in units(config, part) if len(u) > 1)
    return total


def _head(config: EncoderConfig, head: HeadConfig, length: int) -> float:
    rows = length if head.per_token else 1
    dense = head.transforms or head.needs_pooler or not head.per_token
    return 2 * rows * config.hidden * ((config.hidden if dense else 0) + head.outputs)


def uses(config: EncoderConfig, part: str) -> Sequence[int]:
    """How many layers each unit is."""
    return [len(unit) for unit in units(config, part)]
