"""Whether a model's labels stand in another order than the data's: right answers under the wrong names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.confusion import confusion
from evaluation.quality.matthews import score as matthews
from evaluation.quality.paired import exact_sign_test

CERTAIN = 0.001
"""Of the sign test: a check that stops runs may be wrong once in a thousand."""
GAIN = 0.1
"""Least share of the rows that the other order must set right: fewer could be a few odd rows."""
TIED = 0.3
"""Least Matthews coefficient in the other order: a model that always gives one answer is no better in any order."""


@dataclass(frozen=True)
class CrossedLabels:
    """order: (C,) for each of the data's classes, the output that stands for it.  plain, ordered: shares of rows that
    are right as they stand, and in that order."""

    order: NDArray[np.int64]
    plain: float
    ordered: float


def find_crossed_labels(gold: ArrayLike, predicted: ArrayLike, classes: int) -> CrossedLabels | None:
    """(N,) right classes and (N,) answers → the order of outputs that fits them, if it clearly is another one.

    Judged on rows that it was not found on: the order found on either half of the rows is tried on the other half.
    """
    y, z = np.asarray(gold), np.asarray(predicted)
    if len(y) < 4:
        return None
    halves = np.arange(len(y)) % 2 == 0
    mapped = np.empty(len(y), dtype=np.int64)
    for half in (halves, ~halves):
        mapped[half] = _order(y[~half], z[~half], classes)[y[half]]
    plain, ordered = z == y, z == mapped
    wins, losses = int((ordered & ~plain).sum()), int((plain & ~ordered).sum())
    if wins <= losses or (wins - losses) / len(y) < GAIN or exact_sign_test(wins, losses) > CERTAIN:
        return None
    order = _order(y, z, classes)
    if float(matthews(confusion(order[y], z, classes))) < TIED:
        return None
    return CrossedLabels(order, float(plain.mean()), float((order[y] == z).mean()))


def _order(gold: NDArray, predicted: NDArray, classes: int) -> NDArray[np.int64]:
    """The one-to-one order that makes most rows right, cell by cell, the largest first; ties keep their place."""
    table = confusion(gold, predicted, classes) + 0.5 * np.eye(classes)
    order = np.full(classes, -1, dtype=np.int64)
    for cell in np.argsort(-table, axis=None, kind="stable"):
        label, output = divmod(int(cell), classes)
        if table[label, output] and order[label] < 0 and output not in order:
            order[label] = output
    free = [output for output in range(classes) if output not in order]
    order[order < 0] = free
    return order
