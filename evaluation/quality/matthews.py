"""Matthews correlation coefficient, many classes (Gorodkin 2004, R_K): 0 for guessing, 1 for perfect, -1 at worst."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.confusion import margins

NAME = "matthews"


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) coefficients; 0 where one side has a single class, as scikit-learn."""
    return score_margins(*margins(tables))


def score_margins(hits: NDArray, gold: NDArray, predicted: NDArray) -> NDArray[np.float64]:
    """`score` of `confusion.margins`, each (..., C)."""
    total = gold.sum(axis=-1)
    above = hits.sum(axis=-1) * total - (gold * predicted).sum(axis=-1)
    below = np.sqrt((total**2 - (gold**2).sum(axis=-1)) * (total**2 - (predicted**2).sum(axis=-1)))
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
