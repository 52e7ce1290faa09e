"""What a metric gives for nothing: the score of the best constant answer, the same one for every row.

Quality that a smaller model keeps is told above it: 62 % of a binary task is 69 % of a teacher's 90 %, and above a
majority of 50 % it is 30 %. Metrics that are 0 for every constant answer (Matthews, correlations, entity F1) have 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike

ROUNDING = 1e-9
"""Equal shares of rows differ by less where they were added up in another order."""


def find_unbeaten(value: float, levels: Mapping[str, float]) -> str | None:
    """The highest of what needs no model, name → score, where `value` is not above it; None where it is, and where none
    could be: at 1, the highest score."""
    name = max(levels, key=levels.__getitem__, default=None)
    if name is None or not math.isfinite(value) or value > levels[name] + ROUNDING or value >= 1:
        return None
    return name


def score_constant_label(gold: ArrayLike, classes: int) -> dict[str, float]:
    """(N,) classes → metric → its best score where every row gets the same one. Raises ValueError for no rows."""
    counts = np.bincount(np.asarray(gold), minlength=classes)
    if not counts.sum():
        raise ValueError("no rows to score")
    shares = counts / counts.sum()
    f1 = 2 * shares / (1 + shares)  # of a class that every row is said to be of: recall 1, precision its share
    found = {"accuracy": float(shares.max()), "f1_macro": float(f1.max() / np.count_nonzero(counts)), "matthews": 0.0}
    return found | ({"f1_binary": float(f1[1])} if classes == 2 else {})


def score_constant_labels(gold: ArrayLike) -> dict[str, float]:
    """(N, C) booleans, which labels apply → metric → its best score where every row gets the same labels.

    Raises ValueError for no rows.
    """
    truth = np.asarray(gold, dtype=bool)
    if not len(truth):
        raise ValueError("no rows to score")
    counts = np.sort(truth.sum(0))[::-1]
    said = len(truth) * np.arange(1, len(counts) + 1)  # the most frequent label alone, then two, then three
    micro = 2 * np.cumsum(counts) / (said + max(counts.sum(), 1))
    shares = counts / len(truth)
    sets = np.unique(truth, axis=0, return_counts=True)[1]
    return {
        "f1_micro": float(micro.max()),
        "f1_macro": float((2 * shares / (1 + shares)).mean()),
        "accuracy": float(sets.max() / len(truth)),
    }
