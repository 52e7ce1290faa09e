"""The interval of a metric, and of the difference of two models in it: exact or a score interval where there is one,
else a bootstrap that does not end at a figure which only looks certain."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.calibration import CalibrationError
from evaluation.quality.draws import RowMean, Weighted
from evaluation.quality.intervals import Interval, Resamples, resample_figure
from evaluation.quality.shares import count_discordant, paired_share_interval, share_interval

FEW = 10.0
"""Effective number of rows on the rarer side (wrong, of a good model) below which resamples hold too few of them."""


def estimate_metric(
    rows: int, figure: Weighted, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """A metric that is at best 1, with its interval.

    A share of rows has `share_interval`, the calibration error its own (`CalibrationError.interval`), any other BCa
    (`bootstrap_rows`). Where a BCa interval rests on fewer than `FEW` effective errors (or hits) it is widened to the
    interval of a share of as many effective rows. Raises ValueError as `bootstrap_rows`.
    """
    if isinstance(figure, RowMean) and figure.right is not None:
        return share_interval(float(figure.right.sum()), rows, level=level)
    if isinstance(figure, CalibrationError):
        return figure.interval(resamples=resamples, seed=seed, level=level)
    return metric_interval(resample_figure(rows, figure, resamples=resamples, seed=seed), level)


def metric_interval(drawn: Resamples, level: float = 0.95) -> Interval:
    """`estimate_metric` of a metric that is no share of rows, from its resamples."""
    found = drawn.interval(level)
    return found if (rows := _effective_rows(drawn)) is None else found.widened(_share(drawn.value, rows, level))


def _share(value: float, rows: float, level: float) -> Interval:
    return share_interval(min(max(value, 0.0), 1.0) * rows, rows, level=level)


def _effective_rows(drawn: Resamples) -> float | None:
    """As many independent rows as would give a share of this value the spread that its resamples have (Korn & Graubard
    1998), where they are too few on one side for a bootstrap; None elsewhere."""
    value, close = drawn.value, 1e-9
    if not -close <= value <= 1 + close or (value < 0.5 and np.nanmin(drawn.figures) < 0):
        return None  # a correlation near 0 is at no end of its range
    if value < close or value > 1 - close:
        return float(drawn.rows)
    spread = float(np.nanvar(drawn.figures))
    if spread < 1e-20:
        return None
    rows = value * (1 - value) / spread
    return rows if rows * min(value, 1 - value) < FEW else None


def estimate_difference(
    rows: int, ours: Weighted, theirs: Weighted, *, resamples: int = 1000, seed: int = 0, level: float = 0.95
) -> Interval:
    """One model's metric minus another's on the same rows, with its paired interval.

    Shares of rows have `paired_share_interval`, any other metric BCa on the same draws (Koehn 2004). Raises ValueError
    as `bootstrap_rows`.
    """
    if isinstance(ours, RowMean) and isinstance(theirs, RowMean):
        a, b = ours.right, theirs.right
        if a is not None and b is not None:
            return paired_share_interval(*count_discordant(a, b), rows, level=level)
    drawn = resample_figure(rows, lambda w: ours(w) - theirs(w), resamples=resamples, seed=seed)
    return difference_interval(drawn, level)


def difference_interval(drawn: Resamples, level: float = 0.95) -> Interval:
    """`estimate_difference` from the resamples of a difference.

    Where it rests on fewer than `FEW` rows it is widened to the interval of as many discordant rows of two shares:
    equal figures on n rows do not make two models equal.
    """
    found, rows, spread = drawn.interval(level), drawn.rows, float(np.nanvar(drawn.figures))
    discordant = spread * rows**2  # of a share, the number of rows that only one of the two gets right
    if discordant >= FEW or (spread > 1e-20 and _influential_groups(drawn.left_out) >= FEW):
        return found
    ahead = rows * drawn.value
    only_a, only_b = (min(max((discordant + sign * ahead) / 2, 0.0), rows / 2) for sign in (1, -1))
    return found.widened(paired_share_interval(only_a, only_b, rows, level=level))


def _influential_groups(left_out: NDArray[np.float64] | None) -> float:
    """Groups of rows that a figure rests on: as many equal ones would have the same kurtosis of their influence. A
    continuous figure rests on all of them, however little they differ."""
    if left_out is None or np.isnan(left_out).any():
        return np.inf
    square = np.square(left_out - np.median(left_out))
    return 0.0 if square.sum() < 1e-30 else float(square.sum() ** 2 / np.square(square).sum())
