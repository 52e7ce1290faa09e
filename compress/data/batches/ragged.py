"""Lists of several lengths in one array: what rows of tags, tokens or answers are held as."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from compress.storage.spill import pieces


def gather(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(positions of all items of `rows`, end to end; their new offsets), without a Python loop."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    bounds = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1]), bounds


def bounds_of(lengths: Iterable[int]) -> np.ndarray:
    """(N+1,) int64 offsets of N lists of these lengths."""
    counts = np.fromiter(lengths, dtype=np.int64)
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])


@dataclass(frozen=True)
class Ragged:
    """N lists end to end. values: (W, ...) of all items.  offsets: (N+1,) int64, where each begins, and the end."""

    values: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, rows: np.ndarray | Sequence[int]) -> Ragged:
        """The lists at `rows`, in that order, as an array of numbers gives its rows."""
        items, offsets = gather(self.offsets, np.asarray(rows, dtype=np.int64))
        return Ragged(self.values[items], offsets)

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64 items of each list."""
        return np.diff(self.offsets)

    def row(self, index: int) -> np.ndarray:
        """The items of one list."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def rows_with(self, items: np.ndarray) -> np.ndarray:
        """(N,) bool: the lists in which any item is marked by `items` (W,) bool."""
        found = np.zeros(len(self), dtype=bool)
        found[np.searchsorted(self.offsets, np.flatnonzero(items), side="right") - 1] = True
        return found


LabelArray = np.ndarray | Ragged
"""What rows are labelled with: an array whose first axis is the rows, or lists. Both are indexed by row numbers."""


def content(labels: LabelArray) -> Iterator[bytes]:
    """The bytes that stand for these labels in a fingerprint, piece by piece: integers of 64 bits and floats of 32,
    little-endian."""
    for array in (labels.offsets, labels.values) if isinstance(labels, Ragged) else (labels,):
        for piece in pieces(array):
            yield piece.astype("<f4" if np.issubdtype(array.dtype, np.floating) else "<i8").tobytes()


def marks(labels: LabelArray) -> np.ndarray:
    """(N,) int64, equal for rows with equal labels."""
    if isinstance(labels, np.ndarray) and labels.ndim == 1 and np.issubdtype(labels.dtype, np.integer):
        return labels
    rows = (labels.row(i) if isinstance(labels, Ragged) else labels[i] for i in range(len(labels)))
    return np.fromiter((hash(np.ascontiguousarray(row).tobytes()) for row in rows), dtype=np.int64, count=len(labels))
