"""Figures as functions of how often each row was drawn: what `intervals.bootstrap_rows` resamples.

Such a function maps (R, N) numbers of draws to (R,) figures. Two of them on the same draws give a paired difference.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.confusion import check_labels

Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]
CELLS = 4_000_000  # of the confusion tables that are held at once: 32 MB


class RowMean:
    """The mean of one number a row; with `sizes`, of sums of as many items as each row has.

    values, sizes: (N,).  right: (N,) bool where the values are 0 or 1 and every row counts once, so that the mean is a
    share of rows; None elsewhere.
    """

    def __init__(self, values: ArrayLike, sizes: ArrayLike | None = None) -> None:
        self.values = np.asarray(values, dtype=np.float64)
        self.sizes = None if sizes is None else np.asarray(sizes, dtype=np.float64)
        is_share = self.sizes is None and bool(np.isin(self.values, (0.0, 1.0)).all())
        self.right: NDArray[np.bool_] | None = self.values.astype(bool) if is_share else None
        items = np.ones(len(self.values)) if self.sizes is None else self.sizes
        self._both = np.stack([self.values, items], axis=1)

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(R, N) numbers of draws → (R,) means, NaN where nothing was drawn."""
        sums = weights @ self._both
        return np.divide(sums[:, 0], sums[:, 1], out=np.full(len(sums), np.nan), where=sums[:, 1] > 0)


def of_mean(values: ArrayLike, sizes: ArrayLike | None = None) -> RowMean:
    """The mean of one number a row; with `sizes` (N,), of sums of as many items as each row has."""
    return RowMean(values, sizes)


def of_counts(counts: ArrayLike, score: Callable[[NDArray], NDArray]) -> Weighted:
    """A figure of summed counts. counts: (N, ...) of each row.  score: (..., ...) sums to (...) figures."""
    rows = np.asarray(counts, dtype=np.float64)
    flat = rows.reshape(len(rows), -1)
    return lambda weights: score((weights @ flat).reshape(-1, *rows.shape[1:]))


def of_tables(
    gold: ArrayLike,
    predicted: ArrayLike,
    classes: int,
    scores: Mapping[str, Callable[[NDArray], NDArray]],
    rows: ArrayLike | None = None,
) -> dict[str, Weighted]:
    """Metrics of the confusion table of single labels. scores: name → function of (..., C, C) tables.

    rows: (M,) the row that each of M labels belongs to, where a row has several (words of a sentence). A metric whose
    module also has `score_margins` never sees a table: ten thousand classes have one of 800 MB for every draw. Raises
    ValueError as `check_labels`.
    """
    gold_ids, predicted_ids = check_labels(gold, predicted, classes)
    cells, cell = np.unique(gold_ids.astype(np.int64) * classes + predicted_ids, return_inverse=True)
    owner = np.arange(len(cell)) if rows is None else np.asarray(rows)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(len(cells)))
    row, column = np.divmod(cells, classes)

    def counts(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.add.reduceat(weights[:, owner[order]], starts, axis=1)

    def tables(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        filled = np.zeros((len(weights), classes * classes))
        filled[:, cells] = counts(weights)
        return filled.reshape(-1, classes, classes)

    def margins(weights: NDArray[np.float64]) -> list[NDArray[np.float64]]:
        held = counts(weights)
        return [
            _by_class(held, row, classes, row == column),
            _by_class(held, row, classes),
            _by_class(held, column, classes),
        ]

    def figure(score: Callable[[NDArray], NDArray]) -> Weighted:
        module = sys.modules[score.__module__]
        of_margins = getattr(module, "score_margins", None) if getattr(module, "score", None) is score else None
        if of_margins is not None:
            step = max(1, CELLS // max(3 * classes, len(cell)))
            return lambda w: np.concatenate([of_margins(*margins(w[i : i + step])) for i in range(0, len(w), step)])
        step = max(1, CELLS // max(classes * classes, len(cell)))
        return lambda w: np.concatenate([score(tables(w[i : i + step])) for i in range(0, len(w), step)])

    return {name: figure(score) for name, score in scores.items()}


def _by_class(
    counts: NDArray[np.float64], of: NDArray[np.int64], classes: int, chosen: NDArray[np.bool_] | None = None
) -> NDArray[np.float64]:
    """(R, cells) counts summed over the cells of each class, (R, C). of: (cells,) the class of each."""
    at = np.arange(len(of)) if chosen is None else np.flatnonzero(chosen)
    at = at[np.argsort(of[at], kind="stable")]
    out = np.zeros((len(counts), classes))
    if len(at):
        there, starts = np.unique(of[at], return_index=True)
        out[:, there] = np.add.reduceat(counts[:, at], starts, axis=1)
    return out
