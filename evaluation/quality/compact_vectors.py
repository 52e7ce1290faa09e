"""Vectors in fewer bytes: the first dimensions only, int8 and binary codes, and what a search over them finds.

Codes are those of `quantize_embeddings` of sentence-transformers 6.2: int8 divides the range of each dimension into 255
steps and rounds down, binary keeps signs. Queries stay floats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.retrieval import search

Kind = Literal["float32", "int8", "binary", "binary+int8"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""float32.  int8: one byte a dimension.  binary: one bit a dimension; the best found by Hamming distance are ranked
anew by the float query and the signs.  binary+int8: ranked anew by int8 codes, which are stored too."""
RESCORED = 4
"""Candidates of a binary search for each result."""
_ROWS = 64
"""Queries whose candidates are ranked anew at once."""


def cut(vectors: NDArray, dimensions: int, *, normalize: bool = True) -> NDArray[np.float32]:
    """(N, D) → (N, dimensions): the first ones, of length 1 again unless they are ranked by dot product. Raises
    ValueError where there are fewer."""
    if not 1 <= dimensions <= vectors.shape[1]:
        raise ValueError(f"{dimensions} of {vectors.shape[1]} dimensions")
    kept = np.asarray(vectors[:, :dimensions], dtype=np.float32)
    return kept / np.maximum(np.linalg.norm(kept, axis=1, keepdims=True), 1e-12) if normalize else kept


def fit_ranges(vectors: NDArray) -> NDArray[np.float32]:
    """(2, D): the lowest and the highest value of each dimension."""
    return np.stack([vectors.min(0), vectors.max(0)]).astype(np.float32)


def to_int8(vectors: NDArray, ranges: NDArray) -> NDArray[np.int8]:
    """(N, D) codes -128..127; values outside the ranges get the nearest code."""
    codes = np.floor((vectors - ranges[0]) / _steps(ranges))
    return (np.clip(codes, 0, 255) - 128).astype(np.int8)


def from_int8(codes: NDArray[np.int8], ranges: NDArray) -> NDArray[np.float32]:
    """The middle of what each code stands for (N, D)."""
    middle = codes.astype(np.float32) + 128.5
    return (middle * _steps(ranges) + ranges[0]).astype(np.float32)


def to_bits(vectors: NDArray) -> NDArray[np.uint8]:
    """(N, D) → (N, D / 8 rounded up): whether each value is above 0, eight in a byte."""
    return np.packbits(vectors > 0, axis=1)


def from_bits(bits: NDArray[np.uint8], dimensions: int) -> NDArray[np.float32]:
    """(N, dimensions) of 1 and -1."""
    return np.unpackbits(bits, axis=1, count=dimensions).astype(np.float32) * 2 - 1


class StoredVectors:
    """Documents as an index keeps them.

    documents: (N, D) floats.  ranges: (2, D) of int8; None: those of the documents.
    """

    def __init__(self, documents: NDArray, kind: Kind, ranges: NDArray | None = None) -> None:
        self.kind: Kind = kind
        self.width = documents.shape[1]
        self.ranges = fit_ranges(documents) if ranges is None else ranges
        self.floats = np.ascontiguousarray(documents, dtype=np.float32) if kind == "float32" else None
        self.codes = to_int8(documents, self.ranges) if "int8" in kind else None
        self.bits = to_bits(documents) if "binary" in kind else None

    @property
    def bytes_per_vector(self) -> int:
        kept = [part for part in (self.floats, self.codes, self.bits) if part is not None]
        return sum(part.shape[1] * part.itemsize for part in kept)

    def __len__(self) -> int:
        return next(len(part) for part in (self.floats, self.codes, self.bits) if part is not None)

    def repeat(self, rows: int) -> StoredVectors:
        """The same codes again and again, `rows` of them: what a search over many costs."""
        made = StoredVectors.__new__(StoredVectors)
        made.kind, made.width, made.ranges = self.kind, self.width, self.ranges
        places = np.arange(rows) % len(self)
        made.floats, made.codes, made.bits = (
            None if part is None else part[places] for part in (self.floats, self.codes, self.bits)
        )
        return made

    def decode(self, rows: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
        """(n, D): what a query is compared with in the end. rows: of which; None: of all."""
        chosen = slice(None) if rows is None else rows
        if self.floats is not None:
            return self.floats[chosen]
        if self.codes is not None:
            return from_int8(self.codes[chosen], self.ranges)
        assert self.bits is not None
        return from_bits(self.bits[chosen], self.width)

    def search(self, queries: NDArray, top: int, *, skip: Sequence[int] | None = None) -> NDArray[np.int64]:
        """(Q, D) float queries → (Q, top) rows, best first. skip: as in `retrieval.search`."""
        if self.bits is None:
            documents = self.floats if self.floats is not None else _Decoded(self)
            return search(queries, documents, top, similarity="dot", skip=skip)[0]
        candidates = min(RESCORED * top, len(self) - (skip is not None))
        found, _ = search(to_bits(queries), self.bits, candidates, similarity="hamming", skip=skip)
        best = np.empty((len(queries), top), dtype=np.int64)
        for start in range(0, len(queries), _ROWS):
            rows = found[start : start + _ROWS]
            decoded = self.decode(rows.reshape(-1)).reshape(*rows.shape, self.width)
            scores = np.einsum("qd,qcd->qc", queries[start : start + _ROWS], decoded)
            order = np.argsort(-scores, axis=1, kind="stable")[:, :top]
            best[start : start + _ROWS] = np.take_along_axis(rows, order, axis=1)
        return best


class _Decoded:
    """int8 codes that are read as floats, slice by slice."""

    def __init__(self, stored: StoredVectors) -> None:
        self._stored = stored

    @property
    def shape(self) -> tuple[int, ...]:
        return len(self._stored), self._stored.width

    def __getitem__(self, rows: slice, /) -> NDArray:
        codes = self._stored.codes
        assert codes is not None
        return from_int8(codes[rows], self._stored.ranges)


def _steps(ranges: NDArray) -> NDArray:
    return np.maximum((ranges[1] - ranges[0]) / 255, 1e-12)
