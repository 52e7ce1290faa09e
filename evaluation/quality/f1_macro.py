"""Macro F1: the mean over classes of the harmonic mean of precision and recall (van Rijsbergen 1979).

A class without gold rows and without predictions scores 0, as in scikit-learn with `zero_division=0`; classes that
appear in neither are left out of the mean, as scikit-learn does when it takes the labels from the data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NAME = "f1_macro"


def per_class(tables: NDArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(..., C, C) tables to (..., C) F1 and a mask of the classes that occur in gold or predictions."""
    tables = np.asarray(tables, dtype=np.float64)
    hits = np.diagonal(tables, axis1=-2, axis2=-1)
    mass = tables.sum(axis=-1) + tables.sum(axis=-2)
    present = mass > 0
    return np.divide(2 * hits, mass, out=np.zeros_like(mass), where=present), present


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) macro F1."""
    f1, present = per_class(tables)
    return (f1 * present).sum(axis=-1) / np.maximum(present.sum(axis=-1), 1)
