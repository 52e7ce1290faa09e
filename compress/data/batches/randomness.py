"""Random numbers by name: every draw is a pure function of what it is for, so any position can be rebuilt."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import numpy as np

STRETCH = 1 << 19
"""Rows of an order that are in memory at once."""
PIECE = 1 << 16


def stream(*parts: str | int) -> np.random.Generator:
    """A generator for exactly this purpose, e.g. `stream("mask", seed, epoch, index)`.

    The Philox key is a hash of the parts: neighbouring seeds and epochs give unrelated streams.
    """
    digest = hashlib.blake2b("\x1f".join(str(part) for part in parts).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8").astype(np.uint64)))


def order(rows: int, *parts: str | int) -> np.ndarray:
    """(rows,) int64: a permutation of 0..rows-1.

    Built on the raw bit stream and a stable sort: NumPy promises the bits of Philox for good, but not the algorithm
    behind `Generator.permutation`, and a resumed run must see the order it started with.
    """
    bits = stream(*parts).bit_generator.random_raw(rows)
    return np.argsort(bits, kind="stable").astype(np.int64)


class LongOrder:
    """The permutation that `order` gives, a stretch at a time: a slice of it costs no more memory than STRETCH rows.

    A stable sort by random numbers is the sort of those that begin alike, one group after the other: the numbers are
    drawn again for each group, and what is not of the group is dropped.
    """

    def __init__(self, rows: int, *parts: str | int) -> None:
        self._rows, self._parts = rows, parts
        self._shift = np.uint64(64 - max(0, (-(-rows // STRETCH) - 1).bit_length()))
        counts = np.zeros(1 << int(64 - self._shift), np.int64)
        for _, groups, _ in self._drawn():
            counts += np.bincount(groups, minlength=len(counts))
        self._ends = np.cumsum(counts)
        self._held: tuple[int, np.ndarray] | None = None

    def __getitem__(self, at: slice) -> np.ndarray:
        """The rows at these places, (n,) int64."""
        start, stop, step = at.indices(self._rows)
        assert step == 1
        parts = [np.zeros(0, np.int64)]
        while start < stop:
            group = int(np.searchsorted(self._ends, start, side="right"))
            first = int(self._ends[group - 1]) if group else 0
            part = self._group(group)[start - first : stop - first]
            parts.append(part)
            start += len(part)
        return np.concatenate(parts)

    def _group(self, wanted: int) -> np.ndarray:
        if self._held is None or self._held[0] != wanted:
            self._held = None
            found, rows = [], []
            for start, groups, bits in self._drawn():
                here = np.flatnonzero(groups == wanted)
                found.append(bits[here])
                rows.append(here + start)
            self._held = (wanted, np.concatenate(rows)[np.argsort(np.concatenate(found), kind="stable")])
        return self._held[1]

    def _drawn(self) -> Iterator[tuple[int, np.ndarray, np.ndarray]]:
        """(first row, group of each, random number of each), piece by piece."""
        source = stream(*self._parts).bit_generator
        for start in range(0, self._rows, PIECE):
            bits = source.random_raw(min(PIECE, self._rows - start))
            groups = bits >> self._shift if self._shift < 64 else np.zeros(len(bits), np.uint64)
            yield start, groups.astype(np.int64), bits


def draw_spread_rows(total: int, count: int, seed: int, purpose: str = "layer-study") -> np.ndarray:
    """Places of `count` of `total` rows, ascending: one drawn from each of as many equal stretches."""
    starts = np.arange(count) * total // count
    ends = np.arange(1, count + 1) * total // count
    drawn = stream(purpose, seed).bit_generator.random_raw(count) % (ends - starts).astype(np.uint64)
    return starts + drawn.astype(np.int64)
