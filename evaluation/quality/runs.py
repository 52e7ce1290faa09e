"""The difference of two ways to train, each trained several times: rows and runs are both a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.intervals import Interval, percentile_interval

Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(R, rows) numbers of draws of each row → (R,) figures."""


def difference_over_runs(
    rows: int,
    ours: Sequence[Weighted],
    theirs: Sequence[Weighted],
    *,
    resamples: int = 2000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Mean of `ours` minus `theirs`, run by run on the same rows, resampling rows and pairs of runs.

    ours, theirs: one figure a run (a seed), in the same order. A handful of runs says little about how runs vary: the
    interval is then mostly that of the rows. Raises ValueError on no rows, no runs, or runs that are no pairs.
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
        each = np.stack([a(weights) - b(weights) for a, b in zip(ours, theirs)])
        runs = rng.integers(0, len(ours), (len(ours), size))
        parts.append(each[runs, np.arange(size)].mean(0))
    figures = np.concatenate(parts)
    figures = figures[~np.isnan(figures)]
    if not len(figures):
        raise ValueError("the figure is undefined on every resample of these rows")
    return percentile_interval(value, figures, rows, level)
