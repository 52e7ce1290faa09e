"""Micro F1: F1 of the hits, predictions and gold labels of all classes together; of one label a row it is accuracy."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality import accuracy

NAME = "f1_micro"


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) micro F1: every row is one prediction and one gold label."""
    return accuracy.score(tables)


def score_margins(hits: NDArray, gold: NDArray, predicted: NDArray) -> NDArray[np.float64]:
    """`score` of `confusion.margins`, each (..., C)."""
    return accuracy.score_margins(hits, gold, predicted)
