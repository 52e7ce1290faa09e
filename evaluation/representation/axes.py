"""Whether cosines between the vectors of two models mean anything: not after the vectors of one were rotated."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.representation.neighbours import FEWEST_TEXTS, similarity_rank_correlation

TEXTS = 256
"""Compared, at most."""
NEARER, ALIKE = 0.2, 0.85
"""See `have_same_axes`. Of MiniLM, turned vectors have 0.0 of that nearness, those of half of its layers 0.85."""


def have_same_axes(ours: NDArray, theirs: NDArray) -> bool:
    """False for vectors (N, D) of two models that place texts alike, but on other axes.

    The mean rank correlation of similarities is then above `ALIKE`, while a text's two vectors are hardly nearer to
    each other than those of two texts: by less than `NEARER` of how much nearer a vector is to itself. True among fewer
    than `FEWEST_TEXTS` texts, and for a model that places texts otherwise, such as an untrained one.
    """
    some = np.unique(np.linspace(0, len(ours) - 1, min(TEXTS, len(ours))).astype(np.int64))
    if len(some) < FEWEST_TEXTS:
        return True
    x, y = (_units(vectors[some]) for vectors in (ours, theirs))
    if _contrast(x @ y.T) >= NEARER * _contrast(y @ y.T):
        return True
    return float(np.nan_to_num(similarity_rank_correlation(x, y)).mean()) < ALIKE


def _units(vectors: NDArray) -> NDArray[np.float64]:
    x = np.asarray(vectors, dtype=np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)


def _contrast(cosines: NDArray[np.float64]) -> float:
    """The mean of the diagonal above that of all else."""
    count, same = len(cosines), float(np.trace(cosines))
    return same / count - (float(cosines.sum()) - same) / (count * (count - 1))
