"""Two segments out of a block: next sentence prediction (BERT, 1810.04805) and sentence order (ALBERT, 1909.11942).

Each row's choice is drawn from an array that belongs to (seed, epoch) and is indexed by the row, so it does not depend
on which rows share a batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from compress.data.text.tokens import Blocks, Tokens
from compress.errors import UserError

KINDS = ("none", "nsp", "sop")
DRAWS = 4  # uniform numbers that one row uses
_READ = 1 << 16  # blocks looked at together


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
        if kind == "nsp" and blocks.documents[0] == blocks.documents[-1]:
            raise UserError("next sentence prediction needs at least two documents", do="use sop or none")
        self._kind, self._room, self._blocks, self._tokens = kind, room, blocks, tokens

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
        tokens, documents = self._tokens, self._blocks.documents[rows]
        first, past = tokens.documents[documents], tokens.documents[documents + 1]
        cuts = []
        for a, b, low, high, share in zip(start, end, first, past, draw, strict=True):
            inside = _between(tokens.sentences[low : high + 1], a, b)
            if not len(inside):
                inside = a + 1 + np.flatnonzero(tokens.word_starts[a + 1 : b])
            cuts.append(inside[int(share * len(inside))])
        return np.array(cuts, dtype=np.int64)

    def _elsewhere(self, rows: np.ndarray, draw: np.ndarray) -> np.ndarray:
        """A block of another document for each row, uniformly."""
        documents = self._blocks.documents  # blocks of one document lie side by side
        first = np.searchsorted(documents, documents[rows], side="left")
        own = np.searchsorted(documents, documents[rows], side="right") - first
        place = (draw * (len(self._blocks) - own)).astype(np.int64)
        return np.where(place >= first, place + own, place)


def _between(bounds: np.ndarray, start: int, end: int) -> np.ndarray:
    """Those of the sorted `bounds` that lie strictly between start and end."""
    return bounds[np.searchsorted(bounds, start, side="right") : np.searchsorted(bounds, end, side="left")]


def divisible(tokens: Tokens, blocks: Blocks) -> np.ndarray:
    """(R,) bool: blocks of two words or more, which can be cut in two."""
    parts = []
    for i in range(0, len(blocks), _READ):
        starts, ends = blocks.starts[i : i + _READ], blocks.ends[i : i + _READ]
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens.word_starts[starts[0] : ends[-1]])])
        parts.append(before[ends - starts[0]] > before[starts - starts[0] + 1])
    return np.concatenate(parts)
