"""F1 of the positive one (label 1) of two classes (van Rijsbergen 1979): for tasks that look for something."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.f1_macro import per_class

NAME = "f1_binary"
CLASSES = 2


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., 2, 2) confusion tables to (...) F1 of class 1; 0 where it is neither in gold nor predicted.

    Raises ValueError for tables of another number of classes.
    """
    if np.shape(tables)[-1] != CLASSES:
        raise ValueError(f"f1_binary is of two classes, and there are {np.shape(tables)[-1]}")
    return per_class(tables)[0][..., 1]
