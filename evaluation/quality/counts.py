"""Precision, recall and F1 from counts of things found: entities, labels of a row, tokens (van Rijsbergen 1979).

Counts are kept per row, so a bootstrap over rows is one matrix product (`bootstrap_counts`). The last axis is always
(hits, predicted, gold): how many predicted things are right, how many were predicted, how many there are.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval, bootstrap_rows


def precision(counts: ArrayLike) -> NDArray[np.float64]:
    """(..., 3) counts to (...) shares of the predicted that are right; 0 where nothing was predicted."""
    hits, predicted, _ = _unpacked(counts)
    return _share(hits, predicted)


def recall(counts: ArrayLike) -> NDArray[np.float64]:
    """(..., 3) counts to (...) shares of the gold that were found; 0 where there is none."""
    hits, _, gold = _unpacked(counts)
    return _share(hits, gold)


def f1(counts: ArrayLike) -> NDArray[np.float64]:
    """(..., 3) counts to (...) harmonic means of precision and recall; 0 where there is nothing on either side."""
    hits, predicted, gold = _unpacked(counts)
    return _share(2 * hits, predicted + gold)


def f1_micro(counts: ArrayLike) -> NDArray[np.float64]:
    """(..., K, 3) counts of K kinds to (...) F1 of their sum."""
    return f1(np.asarray(counts).sum(-2))


def f1_macro(counts: ArrayLike) -> NDArray[np.float64]:
    """(..., K, 3) counts of K kinds to (...) means of their F1, every kind with equal weight.

    A kind that is neither in gold nor predicted counts as 0, as in scikit-learn with `zero_division=0`.
    """
    return f1(counts).mean(-1)


def bootstrap_counts(counts: ArrayLike, score, *, resamples: int = 1000, seed: int = 0) -> Interval:
    """Interval of a figure of summed counts, resampling rows.

    counts: (N, ...) of each row.  score: maps (..., ...) summed counts to figures, e.g. `f1` of (N, 3) counts or
    `f1_micro` of (N, K, 3). Raises ValueError on no rows.
    """
    rows = np.asarray(counts, dtype=np.float64)
    flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
    return bootstrap_rows(
        len(rows), lambda w: score((w @ flat).reshape(-1, *rows.shape[1:])), resamples=resamples, seed=seed
    )


def _unpacked(counts: ArrayLike) -> tuple[NDArray, NDArray, NDArray]:
    array = np.asarray(counts, dtype=np.float64)
    return array[..., 0], array[..., 1], array[..., 2]


def _share(part: NDArray, whole: NDArray) -> NDArray[np.float64]:
    return np.divide(part, whole, out=np.zeros(np.shape(whole)), where=whole > 0)
