"""Two segments out of a block: next sentence prediction (BERT, 1810.04805) and sentence order (ALBERT, 1909.11942).

Each row's choice is drawn from an array that belongs to (seed, epoch) and is indexed by the row, so it does not depend
on which rows share a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compress.data.corpus import Blocks, Tokens
from compress.errors import UserError

KINDS = ("none", "nsp", "sop")
DRAWS = 4  # uniform numbers that one row uses


@dataclass(frozen=True)
class Segments:
    """Segment A is ids[a_start:a_end], B ids[b_start:b_end], of B rows each. labels: (B,), 0 = next / in order."""

    a_start: np.ndarray
    a_end: np.ndarray
    b_start: np.ndarray
    b_end: np.ndarray
    labels: np.ndarray


class Pairer:
    """Cuts blocks into segments A and B. Blocks of a single word, which cannot be cut, must have been left out.

    A block is cut between sentences, chosen uniformly; one that holds a single sentence is cut between two of its
    words.
    """

    def __init__(self, tokens: Tokens, blocks: Blocks, kind: str, room: int) -> None:
        if kind == "nsp" and len(np.unique(blocks.documents)) < 2:
            raise UserError("next sentence prediction needs at least two documents", do="use sop or none")
        self._kind, self._room, self._blocks = kind, room, blocks
        self._sentences = tokens.sentences
        self._words = np.flatnonzero(tokens.word_starts)
        # blocks of one document lie side by side
        self._first = np.searchsorted(blocks.documents, blocks.documents, side="left")
        self._past = np.searchsorted(blocks.documents, blocks.documents, side="right")

    def segments(self, rows: np.ndarray, draws: np.ndarray) -> Segments:
        """rows: (B,) block numbers.  draws: (B, DRAWS) uniform in [0, 1)."""
        start, end = self._blocks.starts[rows], self._blocks.ends[rows]
        middle = self._cut(rows, draws[:, 0])
        other = draws[:, 1] < 0.5
        if self._kind == "sop":
            return Segments(
                np.where(other, middle, start),
                np.where(other, end, middle),
                np.where(other, start, middle),
                np.where(other, middle, end),
                other.astype(np.int64),
            )
        far = self._elsewhere(rows, draws[:, 2])
        b_start = np.where(other, self._cut(far, draws[:, 3]), middle)
        b_end = np.where(other, self._blocks.ends[far], end)
        return Segments(
            start, middle, b_start, np.minimum(b_end, b_start + self._room - (middle - start)), other.astype(np.int64)
        )

    def _cut(self, rows: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """Where segment B of each block begins, strictly inside the block."""
        start, end = self._blocks.starts[rows], self._blocks.ends[rows]
        inner = _between(self._sentences, start, end, draw)
        return np.where(inner >= 0, inner, _between(self._words, start, end, draw))

    def _elsewhere(self, rows: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """A block of another document for each row, uniformly."""
        own = self._past[rows] - self._first[rows]
        place = (draw * (len(self._blocks) - own)).astype(np.int64)
        return np.where(place >= self._first[rows], place + own, place)


def _between(bounds: np.ndarray, start: np.ndarray, end: np.ndarray, draw: np.ndarray) -> np.ndarray:
    """One of the sorted `bounds` strictly between start and end, uniformly; -1 where there is none."""
    low, high = np.searchsorted(bounds, start, side="right"), np.searchsorted(bounds, end, side="left")
    count = high - low
    place = np.minimum(low + (draw * count).astype(np.int64), len(bounds) - 1)
    return np.where(count > 0, bounds[place], -1)


def divisible(tokens: Tokens, blocks: Blocks) -> np.ndarray:
    """(R,) bool: blocks of two words or more, which can be cut in two."""
    words = np.flatnonzero(tokens.word_starts)
    return np.searchsorted(words, blocks.starts, side="right") < np.searchsorted(words, blocks.ends, side="left")
