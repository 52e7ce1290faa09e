"""A figure with its interval, and the bootstrap for figures without a better one (Efron 1987, bias-corrected and
accelerated). `shares` has the intervals of shares of rows, `estimates` chooses among them.

scipy.special is imported where it is used: it takes as long as all other imports of a command that lists figures.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

GROUPS = 200
"""Groups of rows that are left out in turn to estimate how a figure's spread changes with its value (acceleration)."""


@dataclass(frozen=True)
class Interval:
    """A figure with its interval. resamples: 0 where it was computed without resampling."""

    value: float
    low: float
    high: float
    rows: int
    resamples: int
    level: float = 0.95

    def holds(self, value: float) -> bool:
        """Whether `value` lies inside the interval."""
        return self.low <= value <= self.high

    def widened(self, other: Interval) -> Interval:
        """The least interval that holds this one and the other."""
        low, high = min(self.low, other.low), max(self.high, other.high)
        return Interval(self.value, low, high, self.rows, self.resamples, self.level)


def percentile_interval(value: float, draws: NDArray[np.float64], rows: int, level: float = 0.95) -> Interval:
    """The interval of the resampled figures `draws`; widened to hold `value` where a small sample's misses it."""
    return _between(value, draws, np.array([(1 - level) / 2, (1 + level) / 2]), rows, level)


def _between(value: float, draws: NDArray[np.float64], tails: NDArray[np.float64], rows: int, level: float) -> Interval:
    low, high = np.quantile(draws, tails)
    return Interval(float(value), float(min(low, value)), float(max(high, value)), rows, len(draws), level)


@dataclass(frozen=True)
class Resamples:
    """A figure of `rows` rows. figures: (R,) of resamples of them.  left_out: (G,) of the rows without one group of
    them each, where that was computed; NaN where a figure is undefined."""

    rows: int
    value: float
    figures: NDArray[np.float64]
    left_out: NDArray[np.float64] | None = None

    def minus(self, other: Resamples) -> Resamples:
        """The paired difference: both must have been resampled alike."""
        left_out = None
        if self.left_out is not None and other.left_out is not None and len(self.left_out) == len(other.left_out):
            left_out = self.left_out - other.left_out
        return Resamples(self.rows, self.value - other.value, self.figures - other.figures, left_out)

    def interval(self, level: float = 0.95) -> Interval:
        """Bias-corrected and accelerated (BCa, Efron 1987); bias-corrected without `left_out`.

        Raises ValueError when the figure is undefined on the rows or on every resample.
        """
        from scipy.special import ndtr, ndtri

        if np.isnan(self.value):
            raise ValueError("the figure is undefined on these rows")
        draws = self.figures[~np.isnan(self.figures)]
        if not len(draws):
            raise ValueError("the figure is undefined on every resample of these rows")
        close = 1e-6 * max(1.0, abs(self.value))  # kept figures have seven digits
        below = np.mean(draws < self.value - close) + np.mean(np.abs(draws - self.value) <= close) / 2
        bias = float(ndtri(np.clip(below, 0.5 / len(draws), 1 - 0.5 / len(draws))))
        ends = bias + ndtri(np.array([(1 - level) / 2, (1 + level) / 2]))
        scale = np.maximum(1 - self._acceleration() * ends, 1e-3)
        return _between(self.value, draws, ndtr(bias + ends / scale), self.rows, level)

    def _acceleration(self) -> float:
        if self.left_out is None:
            return 0.0
        known = self.left_out[~np.isnan(self.left_out)]
        if not len(known):
            return 0.0
        apart = known.mean() - known
        spread = float(np.square(apart).sum()) ** 1.5
        return float((apart**3).sum()) / (6 * spread) if spread > 1e-30 else 0.0


def bootstrap_rows(
    rows: int,
    score: Callable[[NDArray[np.float64]], NDArray[np.float64]],
    *,
    resamples: int = 1000,
    seed: int = 0,
    level: float = 0.95,
) -> Interval:
    """BCa interval of any figure that can be computed from how often each row was drawn.

    score: maps (R, rows) weights (each row's number of draws, all ones for the sample itself) to (R,) figures, NaN
    where a resample leaves the figure undefined; such resamples are left out, and `resamples` of the result says how
    many count. One seed draws the same rows for every figure, so the difference of two models is a paired one.
    Raises ValueError on no rows, or when the figure is undefined on the sample or on every resample.
    """
    return resample_figure(rows, score, resamples=resamples, seed=seed).interval(level)


def resample_figure(
    rows: int, score: Callable[[NDArray[np.float64]], NDArray[np.float64]], *, resamples: int, seed: int = 0
) -> Resamples:
    """The figure of the rows, of resamples of them, and of the rows without each of at most `GROUPS` groups.

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
    return Resamples(rows, value, np.concatenate(parts), _left_out(rows, score, block))


def _left_out(
    rows: int, score: Callable[[NDArray[np.float64]], NDArray[np.float64]], block: int
) -> NDArray[np.float64] | None:
    """(G,) figures without each group of rows; neighbours are in different groups. None for a single row."""
    if rows < 2:
        return None
    groups = min(rows, GROUPS)
    owner, parts = np.arange(rows) % groups, []
    for start in range(0, groups, block):
        out = np.arange(start, min(start + block, groups))
        parts.append(score((owner != out[:, None]).astype(np.float64)))
    return np.concatenate(parts)


def mean_interval(values: ArrayLike, *, level: float = 0.95) -> Interval:
    """Mean of a few independent figures (one a seed) with Student's interval. Raises ValueError below two.

    Two or three figures give a wide interval: that is what they are worth.
    """
    from scipy.special import stdtrit

    x = np.asarray(values, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"an interval needs at least two figures, found {len(x)}")
    half = float(stdtrit(len(x) - 1, (1 + level) / 2)) * float(x.std(ddof=1)) / len(x) ** 0.5
    mean = float(x.mean())
    return Interval(mean, mean - half, mean + half, len(x), 0, level)
