"""Matthews correlation coefficient, many classes (Gorodkin 2004, R_K): 0 for guessing, 1 for perfect, -1 at worst."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAME = "matthews"


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) coefficients; 0 where one side has a single class, as scikit-learn."""
    tables = np.asarray(tables, dtype=np.float64)
    total = tables.sum(axis=(-2, -1))
    hits = np.trace(tables, axis1=-2, axis2=-1)
    gold, predicted = tables.sum(axis=-1), tables.sum(axis=-2)
    above = hits * total - (gold * predicted).sum(axis=-1)
    below = np.sqrt((total**2 - (gold**2).sum(axis=-1)) * (total**2 - (predicted**2).sum(axis=-1)))
    return np.divide(above, below, out=np.zeros_like(above), where=below > 0)
