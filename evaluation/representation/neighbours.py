"""How alike two models place the same texts, without labels: their nearest neighbours and the order of similarities.

The widths of the two may differ. One value a text, so that intervals and paired tests over texts apply.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.retrieval import search

NEIGHBOURS = 10
FEWEST_TEXTS = NEIGHBOURS + 2
"""Among fewer, all other texts are neighbours, and every model shares them."""
ROWS = 256
"""Texts whose similarities are ranked at once."""


def neighbour_overlap(
    ours: NDArray, theirs: NDArray, texts: NDArray[np.int64] | None = None, *, neighbours: int = NEIGHBOURS
) -> NDArray[np.float64]:
    """(Q,) share of a text's nearest neighbours by cosine, itself left out, that are the same in (N, D) and (N, E).

    texts: (Q,) rows whose neighbours are looked for among all N; None: all of them. Raises ValueError where there are
    no more than `neighbours` texts.
    """
    chosen = _chosen(ours, theirs, texts)
    found = [search(x[chosen], x, neighbours, skip=chosen.tolist())[0] for x in (ours, theirs)]
    same = (found[0][:, :, None] == found[1][:, None, :]).any(2)
    return same.mean(1)


def similarity_rank_correlation(
    ours: NDArray, theirs: NDArray, texts: NDArray[np.int64] | None = None
) -> NDArray[np.float64]:
    """(Q,) Spearman's correlation of a text's cosines with all others in (N, D) and in (N, E); NaN where all are equal.

    texts: as in `neighbour_overlap`. Raises ValueError below three texts.
    """
    from scipy.stats import rankdata  # slow to import, and most commands rank nothing

    chosen = _chosen(ours, theirs, texts)
    if len(ours) < 3:
        raise ValueError(f"similarities need three texts, and there are {len(ours)}")
    units = [_units(x) for x in (ours, theirs)]
    parts = []
    for start in range(0, len(chosen), ROWS):
        rows = chosen[start : start + ROWS]
        others = np.ones((len(rows), len(ours)), dtype=bool)
        others[np.arange(len(rows)), rows] = False
        ranks = [rankdata((u[rows] @ u.T)[others].reshape(len(rows), -1), axis=1) for u in units]
        a, b = (r - r.mean(1, keepdims=True) for r in ranks)
        below = np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
        parts.append(np.divide((a * b).sum(1), below, out=np.full(len(rows), np.nan), where=below > 0))
    return np.concatenate(parts)


def _chosen(ours: NDArray, theirs: NDArray, texts: NDArray[np.int64] | None) -> NDArray[np.int64]:
    if len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} and {len(theirs)} vectors are not those of the same texts")
    return np.arange(len(ours)) if texts is None else np.asarray(texts, dtype=np.int64)


def _units(vectors: NDArray) -> NDArray[np.float64]:
    x = np.asarray(vectors, dtype=np.float64)
    return x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12)
