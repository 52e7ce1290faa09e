"""Bootstrap intervals (Efron 1979, percentile form), with the number of rows and resamples beside the figure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Interval:
    """A figure with its percentile interval."""

    value: float
    low: float
    high: float
    rows: int
    resamples: int
    level: float = 0.95

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside the interval."""
        return self.low <= value <= self.high


def percentile_interval(value: float, draws: NDArray[np.float64], rows: int, level: float = 0.95) -> Interval:
    """The interval of the resampled figures `draws`; widened to hold `value` where a small sample's misses it."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(value), float(min(low, value)), float(max(high, value)), rows, len(draws), level)


def bootstrap_table(
    table: NDArray[np.int64],
    score: Callable[[NDArray], NDArray[np.float64]],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of a metric of a confusion table, resampling rows (which is a multinomial draw over the cells).

    table: (C, C) counts.  score: maps (..., C, C) tables to (...) figures.
    """
    rows = int(table.sum())
    flat = table.reshape(-1)
    cells = np.flatnonzero(flat)  # empty cells stay empty in every resample
    draws = np.random.default_rng(seed).multinomial(rows, flat[cells] / rows, size=resamples)
    figures = np.empty(resamples)
    block = max(1, 2_000_000 // len(flat))  # banking77 has 5,929 cells: bound the dense stack
    for start in range(0, resamples, block):
        part = draws[start : start + block]
        dense = np.zeros((len(part), len(flat)))
        dense[:, cells] = part
        figures[start : start + block] = score(dense.reshape(-1, *table.shape))
    return percentile_interval(float(score(table)), figures, rows, level)


def bootstrap_mean(values: ArrayLike, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
    """Interval of the mean of one number per row. Raises ValueError on no rows."""
    x = np.asarray(values, dtype=np.float64)
    if not len(x):
        raise ValueError("no rows to average")
    # Rows with equal values are interchangeable: resample the counts of the distinct values where they are few.
    distinct, counts = np.unique(x, return_counts=True)
    rng = np.random.default_rng(seed)
    if len(distinct) <= 16:
        draws = rng.multinomial(len(x), counts / len(x), size=resamples) @ distinct / len(x)
    else:
        draws = np.array([x[rng.integers(0, len(x), len(x))].mean() for _ in range(resamples)])
    return percentile_interval(float(x.mean()), draws, len(x), level)


def bootstrap_rows(
    rows: int,
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """Interval of any figure that can be computed from how often each row was drawn.

    score: maps (R, rows) weights (each row's number of draws, all ones for the sample itself) to (R,) figures, NaN
    where a resample leaves the figure undefined; such resamples are left out, and `resamples` of the result says how
    many count. One seed draws the same rows for every figure, so the difference of two models is a paired one.
    Raises ValueError on no rows, or when the figure is undefined on the sample or on every resample.
    """
    value, figures = resample_figure(rows, score, resamples=resamples, seed=seed)
    if np.isnan(value):
        raise ValueError("the figure is undefined on these rows")
    figures = figures[~np.isnan(figures)]
    if not len(figures):
        raise ValueError("the figure is undefined on every resample of these rows")
    return percentile_interval(value, figures, rows, level)


def resample_figure(
    rows: int, score: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, resamples: int, seed: int = 0
) -> tuple[float, NDArray[np.float64]]:
    """(the figure of the rows, (resamples,) figures of resamples of them), NaN where it is undefined.

    score: as of `bootstrap_rows`. One seed and number of rows draw the same rows. Raises ValueError on no rows.
    """
    if not rows:
        raise ValueError("no rows to resample")
    value = float(score(np.ones((1, rows)))[0])
    rng = np.random.default_rng(seed)
    block = max(1, 2_000_000 // rows)  # weights of 16 MB at a time
    parts = []
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = rng.integers(0, rows, (size, rows)) + np.arange(size)[:, None] * rows
        weights = np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows)
        parts.append(score(weights.astype(np.float64)))
    return value, np.concatenate(parts)


_STUDENT = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""


def mean_interval(values: ArrayLike) -> Interval:
    """Mean of a few independent figures (one a seed) with Student's 95 % interval. Raises ValueError below two.

    Two or three figures give a wide interval: that is what they are worth.
    """
    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"an interval needs at least two figures, found {len(x)}")
    freedom = len(x) - 1
    t = _STUDENT[freedom - 1] if freedom <= len(_STUDENT) else 2.0  # a little wide above 30
    half = t * float(x.std(ddof=1)) / len(x) ** 0.5
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half, len(x), 0)
