"""Accuracy: the share of rows whose label was predicted."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.confusion import margins

NAME = "accuracy"


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) accuracies."""
    return score_margins(*margins(tables))


def score_margins(hits: NDArray, gold: NDArray, predicted: NDArray) -> NDArray[np.float64]:
    """`score` of `confusion.margins`, each (..., C)."""
    return hits.sum(axis=-1) / gold.sum(axis=-1)
