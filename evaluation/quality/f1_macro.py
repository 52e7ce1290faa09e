"""Macro F1: the mean over classes of the harmonic mean of precision and recall (van Rijsbergen 1979).

A class without gold rows and without predictions scores 0, as in scikit-learn with `zero_division=0`; classes that
appear in neither are left out of the mean, as scikit-learn does when it takes the labels from the data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.confusion import margins

NAME = "f1_macro"


def per_class(tables: NDArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """(..., C, C) tables to (..., C) F1 and a mask of the classes that occur in gold or predictions."""
    return _per_class(*margins(tables))


def score(tables: NDArray) -> NDArray[np.float64]:
    """(..., C, C) confusion tables to (...) macro F1."""
    return score_margins(*margins(tables))


def score_margins(hits: NDArray, gold: NDArray, predicted: NDArray) -> NDArray[np.float64]:
    """`score` of `confusion.margins`, each (..., C)."""
    f1, present = _per_class(hits, gold, predicted)
    return (f1 * present).sum(axis=-1) / np.maximum(present.sum(axis=-1), 1)


def _per_class(hits: NDArray, gold: NDArray, predicted: NDArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    mass = gold + predicted
    present = mass > 0
    return np.divide(2 * hits, mass, out=np.zeros_like(mass), where=present), present
