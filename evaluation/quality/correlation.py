"""Pearson's and Spearman's correlation of scores with gold scores, ties included, with bootstrap intervals.

Spearman's is Pearson's of the mid-ranks (Spearman 1904; Kendall 1945 for ties). A side whose values are all equal, as
those of one row are, has no correlation: that is raised as `UndefinedCorrelationError`, never returned as NaN.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval, bootstrap_rows

Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]


class UndefinedCorrelationError(ValueError):
    """There is no correlation of fewer than two rows, nor with a side that does not vary; the message says which."""


def pearson(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Linear correlation of two (N,) arrays, -1 to 1.

    Raises ValueError when the shapes differ or a value is not finite, UndefinedCorrelationError when N < 2 or one is
    constant.
    """
    return float(pearson_of_draws(gold, predicted)(np.ones((1, len(np.asarray(gold)))))[0])


def spearman(gold: ArrayLike, predicted: ArrayLike) -> float:
    """Correlation of the ranks of two (N,) arrays, -1 to 1. Raises as `pearson`."""
    return float(spearman_of_draws(gold, predicted)(np.ones((1, len(np.asarray(gold)))))[0])


def bootstrap_correlation(
    of_draws: Callable[[ArrayLike, ArrayLike], Weighted],
    gold: ArrayLike,
    predicted: ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> Interval:
    """Interval of `pearson_of_draws` or `spearman_of_draws`, resampling rows; ranks are taken anew in each resample.

    Raises as `pearson`.
    """
    return bootstrap_rows(len(np.asarray(gold)), of_draws(gold, predicted), resamples=resamples, seed=seed)


def pearson_of_draws(gold: ArrayLike, predicted: ArrayLike) -> Weighted:
    """A function from (R, N) numbers of draws to (R,) correlations, NaN where a draw is constant. Raises as `pearson`.

    For `bootstrap_rows`; the difference of two such functions is the paired difference of two models.
    """
    x, y = (_standard(values) for values in _checked(gold, predicted))
    columns = np.stack([x, y, x * x, y * y, x * y], axis=1)  # (N, 5): a resample is a weighted sum of them

    def score(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        mx, my, xx, yy, xy = (weights @ columns / weights.sum(1, keepdims=True)).T
        return _ratio(xy - mx * my, xx - mx * mx, yy - my * my)

    return score


def spearman_of_draws(gold: ArrayLike, predicted: ArrayLike) -> Weighted:
    """As `pearson_of_draws`, of the mid-ranks in each draw. Raises as `pearson`."""
    places = [np.unique(values, return_inverse=True) for values in _checked(gold, predicted)]

    def score(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        total = weights.sum(1, keepdims=True)
        x, y = (_ranks(weights, len(distinct), place) - (total + 1) / 2 for distinct, place in places)
        return _ratio((weights * x * y).sum(1) / total[:, 0], _mean_square(weights, x), _mean_square(weights, y))

    return score


def _ranks(weights: NDArray[np.float64], distinct: int, place: NDArray[np.intp]) -> NDArray[np.float64]:
    """(R, N) mid-ranks of rows that were drawn `weights` times; place: of each row's value among the distinct ones."""
    draws, rows = weights.shape
    slots = place + np.arange(draws)[:, None] * distinct
    ties = np.bincount(slots.ravel(), weights=weights.ravel(), minlength=draws * distinct).reshape(draws, distinct)
    ranks = np.cumsum(ties, axis=1) - (ties - 1) / 2
    return np.take_along_axis(ranks, np.broadcast_to(place, (draws, rows)), axis=1)


def _mean_square(weights: NDArray[np.float64], x: NDArray[np.float64]) -> NDArray[np.float64]:
    return (weights * x * x).sum(1) / weights.sum(1)


def _ratio(covariance: NDArray, x: NDArray, y: NDArray) -> NDArray[np.float64]:
    """(R,) correlations from centred second moments; NaN where a side has no more spread than rounding leaves."""
    defined = (x > 1e-12) & (y > 1e-12)  # both sides are standardised, or ranks
    below = np.sqrt(np.where(defined, x * y, 1.0))
    return np.where(defined, np.clip(covariance / below, -1.0, 1.0), np.nan)


def _standard(values: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = values - values.mean()
    centred = centred / np.abs(centred).max()  # first, so that squares of tiny or huge values stay in range
    return centred / centred.std()


def _checked(gold: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x, y = np.asarray(gold, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if x.shape != y.shape or x.ndim != 1:
        raise ValueError(f"gold has shape {x.shape} and predictions {y.shape}; both must be (rows,)")
    if len(x) < 2:
        raise UndefinedCorrelationError(f"a correlation needs two rows, and there are {len(x)}")
    for name, values in (("gold scores", x), ("predictions", y)):
        if not np.isfinite(values).all():
            raise ValueError(f"{name} hold values that are not finite")
        if values.min() == values.max():
            raise UndefinedCorrelationError(f"the correlation is undefined: all {name} are {values[0]:g}")
    return x, y
