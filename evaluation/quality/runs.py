"""The difference of two ways to train, each trained several times: rows and runs are both a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.intervals import Interval, percentile_interval

Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(R, rows) numbers of draws of each row → (R,) figures."""


@dataclass(frozen=True)
class DrawnFigures:
    """The mean of figures of things that were drawn at random from many: which were drawn is a sample too."""

    figures: tuple[Weighted, ...]

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(R, rows) → (R,), of the draws as they are."""
        return np.mean([figure(weights) for figure in self.figures], axis=0)

    def resample(self, weights: NDArray[np.float64], seed: Sequence[int]) -> NDArray[np.float64]:
        """The same with the draws drawn anew for each of R, by the seed."""
        each = np.stack([figure(weights) for figure in self.figures])
        drawn = np.random.default_rng(seed).integers(0, len(each), each.shape)
        return np.take_along_axis(each, drawn, 0).mean(0)


def difference_over_runs(
    rows: int,
    ours: Sequence[Weighted],
    theirs: Sequence[Weighted | DrawnFigures],
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Mean of `ours` minus `theirs`, run by run on the same rows, resampling rows, pairs of runs, and what was drawn.

    ours, theirs: one figure a run (a seed), in the same order; draws are the same in all runs. A handful of runs says
    little about how runs vary: the interval is then mostly that of the rows. Raises ValueError on no rows, no runs, or
    runs that are no pairs.
    """
    if not rows or not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} runs against {len(theirs)} on {rows} rows cannot be paired")
    value = float(np.mean([(a(np.ones((1, rows))) - b(np.ones((1, rows))))[0] for a, b in zip(ours, theirs)]))
    rng = np.random.default_rng(seed)
    block = max(1, 2_000_000 // rows)
    parts = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = rng.integers(0, rows, (size, rows)) + np.arange(size)[:, None] * rows
        weights = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)
        other = [b.resample(weights, (seed, start)) if isinstance(b, DrawnFigures) else b(weights) for b in theirs]
        each = np.stack([a(weights) for a in ours]) - np.stack(other)
        runs = rng.integers(0, len(ours), (len(ours), size))
        parts.append(each[runs, np.arange(size)].mean(0))
    figures = np.concatenate(parts)
    figures = figures[~np.isnan(figures)]
    if not len(figures):
        raise ValueError("the figure is undefined on every resample of these rows")
    return percentile_interval(value, figures, rows, level)
