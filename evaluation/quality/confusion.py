"""The table every metric of single-label classification is a function of.

A bootstrap over rows is a multinomial draw over the cells of this table, so metrics are written for a stack of tables
(R, C, C) and a thousand resamples cost one vectorised call instead of a thousand passes over the rows.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def confusion(gold: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """(C, C) counts, gold label in rows, prediction in columns.

    Raises ValueError as `check_labels`.
    """
    gold_ids, predicted_ids = check_labels(gold, predicted, classes)
    return np.bincount(gold_ids * classes + predicted_ids, minlength=classes * classes).reshape(classes, classes)


def margins(tables: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(..., C, C) tables → what most metrics are made of, each (..., C) by class: right answers, gold labels and
    predictions."""
    x = np.asarray(tables, dtype=np.float64)
    return np.diagonal(x, axis1=-2, axis2=-1), x.sum(axis=-1), x.sum(axis=-2)


def check_labels(gold: ArrayLike, predicted: ArrayLike, classes: int) -> tuple[NDArray, NDArray]:
    """Both as arrays. Raises ValueError when the lengths differ, a label is outside 0..C-1, or there are no rows."""
    gold_ids, predicted_ids = np.asarray(gold), np.asarray(predicted)
    if gold_ids.shape != predicted_ids.shape or gold_ids.ndim != 1:
        raise ValueError(f"gold has shape {gold_ids.shape} and predictions {predicted_ids.shape}; both must be (rows,)")
    if not len(gold_ids):
        raise ValueError("no rows to score")
    for name, ids in (("gold", gold_ids), ("predicted", predicted_ids)):
        if ids.min() < 0 or ids.max() >= classes:
            raise ValueError(f"{name} labels run {ids.min()}..{ids.max()}, but there are {classes} classes")
    return gold_ids, predicted_ids
