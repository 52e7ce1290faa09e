"""From what small models take to the cost of blocks: differences are what a layer, a head and a neuron cost."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from compress.fit.cost.blocks import Blocks, Curve, LayerCost, TableCost
from compress.fit.cost.samples import Ladder, Sample


@dataclass(frozen=True)
class SampleCost:
    """Milliseconds of a batch, and megabytes of what is deployed."""

    ms: float
    mb: float


Found = Mapping[Sample, SampleCost]


def assemble_blocks(
    ladder: Ladder, found: Found, rows: Mapping[tuple[int, int], float], small: int, busy: bool
) -> Blocks:
    """The table. rows: (bits, rank) of the word table → megabytes of one of its rows.  small: word rows of a sample.
    busy: as of `Blocks`."""
    full, counts, bits = ladder.full, ladder.counts, ladder.bits
    first, words = bits[0], ladder.words[0]

    def of(bits: int, depth: int, shape: tuple[int, int]) -> SampleCost:
        return found[ladder.sample(bits, depth, shape)]

    layer = _cost({n: _curves(partial(of, n), ladder.depth, full, counts) for n in bits})
    last = _cost({n: _last(partial(of, n, 1), layer, n, full, counts) for n in bits}) if ladder.end else layer
    whole = found[ladder.one]
    ms, mb = (max(0.0, w - x) for w, x in zip((whole.ms, whole.mb), _taken(last, first, full), strict=True))
    usual = rows[words, 0]
    tables = {}
    for sample in ladder.tables:
        cost, row = found[sample], rows[sample.word, sample.rank]
        more = max(0.0, cost.ms - whole.ms) if sample.rank else 0.0
        # The word rows of the samples are counted with those of the plan.
        tables[sample.word, sample.rank] = TableCost(more, cost.mb - whole.mb - small * (row - usual), row)
    blocks = Blocks(layer, last, tables, ms, mb - small * usual, busy)
    whole_ms = np.array([found[s].ms for s in ladder.checks])
    sums = np.array([add_blocks(blocks, s.shapes, first) for s in ladder.checks])
    ratios = np.divide(whole_ms, sums, out=np.ones(len(sums)), where=sums > 0)
    return dataclasses.replace(blocks, checks=tuple(ratios.tolist()))


def add_blocks(blocks: Blocks, shapes: Sequence[tuple[int, int]], bits: int) -> float:
    """Milliseconds of a model whose layers have these heads and neurons, as the sum of its blocks."""
    layers = [blocks.layer] * (len(shapes) - 1) + [blocks.last]
    return blocks.ms + sum(_taken(layer, bits, shape)[0] for layer, shape in zip(layers, shapes, strict=True))


def _cost(curves: Mapping[int, tuple[Curve, Curve]]) -> LayerCost:
    return LayerCost({bits: c[0] for bits, c in curves.items()}, {bits: c[1] for bits, c in curves.items()})


def _taken(layer: LayerCost, bits: int, shape: tuple[int, int]) -> tuple[float, float]:
    """Milliseconds and megabytes of a layer of so many heads and neurons."""
    attention, inner = layer.attention[bits].at(np.array(shape[:1])), layer.feed_forward[bits].at(np.array(shape[1:]))
    return float(attention[0][0] + inner[0][0]), float(attention[1][0] + inner[1][0])


def _curves(
    of: Callable[[int, tuple[int, int]], SampleCost], depth: int, full: tuple[int, int], counts: Sequence[list[int]]
) -> tuple[Curve, Curve]:
    """Of one layer: what its attention takes by heads, norms and all else of it included, and its neurons alone.

    of: what a model takes of so many layers, two of which, or all, have the shape given.  depth: of the larger ones.
    """
    (heads, neurons), two, one = full, of(depth, full), of(1, full)

    def each(name: str) -> tuple[list[float], list[float]]:
        layer = (getattr(two, name) - getattr(one, name)) / (depth - 1)
        by_neurons = [getattr(of(depth, (heads, f)), name) / 2 for f in counts[1]]
        least, size = by_neurons[0], counts[1]
        slope = (by_neurons[-1] - least) / max(1, size[-1] - size[0])
        inner = [max(0.0, x - least + slope * size[0]) for x in by_neurons]
        by_heads = [(getattr(of(depth, (h, neurons)), name) - getattr(two, name)) / 2 for h in counts[0]]
        return [max(0.0, layer - inner[-1] + x) for x in by_heads], inner

    (ms_heads, ms_inner), (mb_heads, mb_inner) = each("ms"), each("mb")
    return (
        Curve(tuple(counts[0]), tuple(ms_heads), tuple(mb_heads)),
        Curve(tuple(counts[1]), tuple(ms_inner), tuple(mb_inner)),
    )


def _last(
    of: Callable[[tuple[int, int]], SampleCost],
    layer: LayerCost,
    bits: int,
    full: tuple[int, int],
    counts: Sequence[list[int]],
) -> tuple[Curve, Curve]:
    """Of the last layer, which always stays: what heads and neurons take beyond the fewest; its bytes are any layer's.

    of: what a model of this layer alone takes.
    """
    ms_heads = [of((h, full[1])).ms for h in counts[0]]
    ms_inner = [of((full[0], f)).ms for f in counts[1]]
    return (
        dataclasses.replace(layer.attention[bits], ms=tuple(max(0.0, x - ms_heads[0]) for x in ms_heads)),
        dataclasses.replace(layer.feed_forward[bits], ms=tuple(max(0.0, x - ms_inner[0]) for x in ms_inner)),
    )
