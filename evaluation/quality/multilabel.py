"""Several labels a row: hits, predictions and gold per row and label, from which micro and macro F1 are summed."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def multilabel_counts(gold: ArrayLike, predicted: ArrayLike) -> NDArray[np.int64]:
    """(N, C, 3) counts (hits, predicted, gold) of (N, C) booleans; `counts.f1_micro` and `f1_macro` take their sum.

    Raises ValueError when the shapes differ or there are no rows.
    """
    truth, answer = _checked(gold, predicted)
    return np.stack([truth & answer, answer, truth], axis=-1).astype(np.int64)


def exact_rows(gold: ArrayLike, predicted: ArrayLike) -> NDArray[np.float64]:
    """(N,) 1.0 where every label of the row is as in gold: their mean is subset accuracy. Raises as above."""
    truth, answer = _checked(gold, predicted)
    return (truth == answer).all(-1).astype(np.float64)


def _checked(gold: ArrayLike, predicted: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    truth, answer = np.asarray(gold, dtype=bool), np.asarray(predicted, dtype=bool)
    if truth.shape != answer.shape or truth.ndim != 2:
        raise ValueError(f"gold has shape {truth.shape} and predictions {answer.shape}; both must be (rows, labels)")
    if not len(truth):
        raise ValueError("no rows to score")
    return truth, answer
