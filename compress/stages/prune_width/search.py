"""Exact search for the number of heads and neurons per layer that minimizes the loss within a budget.

What a unit loses with k of its heads or neurons left is the sum of the scores of those that go, the lowest first, or
what the importance tells of them together; what it costs is in a table. Choosing one k for each unit is a knapsack with
one choice per unit; budgets are cut into CELLS, costs rounded up, so that the result is within the budget and a few
cells below it at most; what is left is filled up. (The released search of Kwon et al. for latency takes a budget from
what an earlier unit left, which is not exact.)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from compress.contracts import WidthScores
from compress.stages.prune_width.costs import Costs, Counts

CELLS = 4000
CHOICES = 96
"""Numbers of neurons that are tried in a unit; those between them are for filling up."""


def losses(scores: Tensor) -> np.ndarray:
    """(n+1,) what is lost with 0..n kept, the lowest scores gone; scores below 0 count as 0."""
    ascending = np.sort(np.clip(scores.double().cpu().numpy(), 0, None))
    return np.concatenate([[0.0], ascending.cumsum()])[::-1].copy()


def curves_of(scores: WidthScores) -> list[np.ndarray]:
    """Of each unit, those of heads first: (n+1,) what is lost with 0..n kept."""
    if scores.lost:
        return [x.numpy() for x in scores.lost]
    return [losses(x) for x in (*scores.heads, *scores.neurons)]


def allocate_nonuniform(scores: WidthScores, costs: Costs, budget: float) -> Counts:
    """Each unit its own counts, at least 1; the loss is least. The budget must be at least `costs.minimum`."""
    curves = curves_of(scores)
    tables = [*costs.heads, *costs.neurons]
    found = solve_knapsack(curves, tables, budget - costs.fixed)
    return Counts(tuple(found[: len(costs.heads)]), tuple(found[len(costs.heads) :]))


def allocate_one_kind(scores: Sequence[Tensor], weights: Sequence[int], total: int) -> list[int]:
    """Counts of one kind alone: `total` units of work in all, where one of unit u is weights[u] of them."""
    curves = [losses(x) for x in scores]
    tables = [w * np.arange(len(x) + 1, dtype=np.float64) for w, x in zip(weights, scores, strict=True)]
    return solve_knapsack(curves, tables, float(total))


def solve_knapsack(curves: Sequence[np.ndarray], tables: Sequence[np.ndarray], budget: float) -> list[int]:
    """One count from 1 up for each unit: the least sum of curves[u][k] with the sum of tables[u][k] within budget."""
    choices = [_choices(len(curve) - 1) for curve in curves]
    least = sum(float(table[1]) for table in tables)
    spare = max(0.0, budget - least)
    cell = _cell(tables, spare)
    cells = min(CELLS, int(spare / cell + 1e-9))
    best = np.zeros(cells + 1)
    taken = []
    for curve, table, ks in zip(curves, tables, choices, strict=True):
        steps = np.clip(np.ceil((table[ks] - table[1]) / cell - 1e-9), 0, CELLS + 1).astype(np.int64)
        new, choice = np.full(cells + 1, np.inf), np.zeros(cells + 1, dtype=np.int32)
        for k, step in zip(ks.tolist(), steps.tolist(), strict=True):
            if step > cells:
                continue
            with_k = best[: cells + 1 - step] + curve[k]
            better = with_k < new[step:]
            new[step:][better] = with_k[better]
            choice[step:][better] = k
        best = new
        taken.append((choice, dict(zip(ks.tolist(), steps.tolist(), strict=True))))
    counts, at = [0] * len(curves), int(best.argmin())
    for unit in reversed(range(len(curves))):
        choice, steps = taken[unit]
        counts[unit] = int(choice[at])
        at -= steps[counts[unit]]
    return _filled(counts, curves, tables, budget)


def _cell(tables: Sequence[np.ndarray], spare: float) -> float:
    """Width of a cell: what all costs are multiples of, where that is wide enough; then nothing is rounded."""
    costs = np.concatenate([table[1:] - table[1] for table in tables])
    if np.all(costs == np.round(costs)):
        common = float(np.gcd.reduce(costs.astype(np.int64)))
        if common and spare / common <= CELLS:
            return common
    return max(spare / CELLS, 1e-12)


def _choices(n: int) -> np.ndarray:
    return np.unique(np.linspace(1, n, min(n, CHOICES)).round().astype(np.int64))


def _filled(counts: list[int], curves: Sequence[np.ndarray], tables: Sequence[np.ndarray], budget: float) -> list[int]:
    """One more where it gains most for its cost, as long as one fits."""
    left = budget - sum(float(table[k]) for table, k in zip(tables, counts, strict=True))
    while True:
        best, where = 0.0, None
        for unit, (k, curve, table) in enumerate(zip(counts, curves, tables, strict=True)):
            if k + 1 >= len(curve):
                continue
            cost = float(table[k + 1] - table[k])
            gain = float(curve[k] - curve[k + 1])
            if cost <= left + 1e-9 and (where is None or gain / max(cost, 1e-12) > best):
                best, where = gain / max(cost, 1e-12), unit
        if where is None:
            return counts
        left -= float(tables[where][counts[where] + 1] - tables[where][counts[where]])
        counts[where] += 1


def allocate_uniform(scores: WidthScores, costs: Costs, budget: float) -> Counts:
    """All layers alike: the shares of heads and of neurons that lose least together, of those within the budget."""
    curves = curves_of(scores)
    heads, neurons = curves[: len(scores.heads)], curves[len(scores.heads) :]
    head_count, neuron_count = (max(len(x) - 1 for x in part) for part in (heads, neurons))
    best: tuple[float, Counts] | None = None
    for h in range(1, head_count + 1):
        ours = _shares([len(x) - 1 for x in heads], h, head_count)

        def fits(f: int, ours: tuple[int, ...] = ours) -> Counts | None:
            counts = Counts(ours, _shares([len(x) - 1 for x in neurons], f, neuron_count))
            return counts if costs.of(counts) <= budget + 1e-9 else None

        # More neurons never lose more: only the most that fit beside so many heads are of interest.
        low, high = 0, neuron_count
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle) else (low, middle - 1)
        counts = fits(low) if low else None
        if counts is None:
            continue
        loss = sum(c[n] for c, n in zip(heads, counts.heads, strict=True))
        loss += sum(c[n] for c, n in zip(neurons, counts.neurons, strict=True))
        if best is None or loss < best[0]:
            best = (float(loss), counts)
    assert best is not None, "the budget is at least the minimum"
    return best[1]


def allocate_same_share(whole: Counts, costs: Costs, budget: float) -> Counts:
    """The same share of heads and of neurons in all layers, the largest within the budget: for scores that do not say
    what a head is worth in neurons."""
    low, high = 0.0, 1.0
    if costs.of(whole) <= budget:
        return whole
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if costs.of(scale_counts(whole, middle)) <= budget + 1e-9 else (low, middle)
    return scale_counts(whole, low)


def scale_counts(whole: Counts, part: float) -> Counts:
    """So much of every unit, at least one; halves are rounded up."""
    return Counts(*(tuple(max(1, int(n * part + 0.5)) for n in counts) for counts in (whole.heads, whole.neurons)))


def _shares(sizes: Sequence[int], count: int, of: int) -> tuple[int, ...]:
    return tuple(max(1, round(size * count / of)) for size in sizes)
