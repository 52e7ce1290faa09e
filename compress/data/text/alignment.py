"""Two tokenizers' pieces of the same texts, as common spans: the smallest stretches that both cut out whole.

A boundary between two pieces is known by the characters before and after it. It is common where both tokenizations
have one at the same place; characters that no piece stands for (spaces, in many vocabularies) may lie on either side of
it. A span is what lies between two common boundaries: one or more whole pieces of each tokenization, nothing left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from compress.data.batches.ragged import gather
from compress.data.text.tokenizer import EncodedRows

START, FIRST, BETWEEN, SECOND, END = range(5)
"""Parts of a row, in their order: the first special token, a text, separators, another text, the last special token."""
GAP = 2  # between two parts: the boundary of parts lies in its middle, beyond every character of either


@dataclass(frozen=True)
class TokenRows:
    """N rows of T pieces. offsets: (N+1,) int64.  parts: (T,) int64, START to END.  spans: (T, 2) int64, the characters
    of the part's text that a piece stands for, from and up to; (0, 1) of special tokens, which are their own part."""

    offsets: np.ndarray
    parts: np.ndarray
    spans: np.ndarray

    @classmethod
    def of(cls, encoded: Sequence[EncodedRows]) -> TokenRows:
        """Of consecutive rows, encoded with their spans; each has a piece at least."""
        starts = np.cumsum([0, *(len(e.ids) for e in encoded)])
        offsets = np.concatenate([np.zeros(1, np.int64), *(e.offsets[1:] + s for e, s in zip(encoded, starts))])
        texts = np.concatenate([np.zeros(0, np.int64), *(_known(e.texts) for e in encoded)])
        spans = np.concatenate([np.zeros((0, 2), np.int64), *(_known(e.spans) for e in encoded)]).astype(np.int64)
        special = texts < 0
        parts = np.where(special, BETWEEN, 2 * texts + FIRST).astype(np.int64)
        lasts, firsts = offsets[1:] - 1, offsets[:-1]
        parts[lasts[special[lasts]]] = END
        parts[firsts[special[firsts]]] = START
        spans[special] = (0, 1)
        return cls(offsets, parts, spans)

    @property
    def rows(self) -> np.ndarray:
        """(T,) int64: the row of each piece."""
        return np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))


@dataclass(frozen=True)
class Spans:
    """Common spans of N rows. first, second: (T1,), (T2,) int32, for each piece the span it belongs to, counted from 0
    in its row; they rise by 0 or 1, and both end at the same one.  counts: (N,) int64 spans of each row."""

    first: np.ndarray
    second: np.ndarray
    counts: np.ndarray


def align(first: TokenRows, second: TokenRows) -> Spans:
    """The common spans of the same rows in two tokenizations.

    Special tokens are aligned by the part of the row that they are: [CLS] with <s>, one separator with two. A piece
    without characters goes with its neighbour. Where a row was cut at another place by each, the rest of the longer one
    belongs to the last span of that text. Rows that both cut alike have a span for each piece.
    """
    assert len(first.offsets) == len(second.offsets), "two tokenizations of different rows"
    frame = _frame(first, second)
    alike = _alike(first, second)
    (at, low, high), (their_at, their_low, their_high) = (_boundaries(side, *frame) for side in (first, second))
    found = np.searchsorted(their_high, low, side="left")
    reached = np.flatnonzero(found < len(their_high))
    common = reached[their_low[found[reached]] <= high[reached]]
    partner = found[common]
    once = np.r_[True, partner[1:] != partner[:-1]][: len(partner)]  # one boundary of ours for one of theirs
    ours = _numbered(first, at[common[once]], alike)
    theirs = _numbered(second, their_at[partner[once]], alike)
    counts = ours[first.offsets[1:] - 1].astype(np.int64) + 1
    assert (counts == theirs[second.offsets[1:] - 1] + 1).all()
    return Spans(ours, theirs, counts)


def _frame(*sides: TokenRows) -> tuple[np.ndarray, np.ndarray]:
    """(N, 5) each: where a row's parts begin on one axis of characters for all rows, and how wide they are."""
    width = np.zeros((len(sides[0].offsets) - 1, END + 1), dtype=np.int64)
    for side in sides:
        np.maximum.at(width, (side.rows, side.parts), side.spans.max(1))
    room = width + GAP
    return np.cumsum(room.ravel()).reshape(room.shape) - room, width


def _boundaries(side: TokenRows, begin: np.ndarray, width: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(piece that it comes after, lowest and highest place) of each boundary within a row, in rising order.

    None where two pieces share characters, such as the bytes of one letter.
    """
    rows, base = side.rows, begin[side.rows, side.parts]
    low = np.maximum.accumulate(base + side.spans.max(1))[:-1]
    high = np.minimum.accumulate((base + side.spans[:, 0])[::-1])[::-1][1:]
    same_row = rows[1:] == rows[:-1]
    change = ~same_row | (side.parts[1:] != side.parts[:-1])
    low = np.where(change, (base + width[rows, side.parts])[:-1] + GAP // 2, low)
    high = np.where(change, base[1:] - GAP // 2, high)
    at = np.flatnonzero(same_row & (low <= high))
    return at, low[at], high[at]


def _alike(first: TokenRows, second: TokenRows) -> np.ndarray:
    """(N,) bool: rows that both tokenizers cut at the same places."""
    lengths = np.diff(first.offsets)
    rows = np.flatnonzero((lengths == np.diff(second.offsets)) & (lengths > 0))
    alike = np.zeros(len(lengths), dtype=bool)
    if len(rows):
        (ours, bounds), (theirs, _) = gather(first.offsets, rows), gather(second.offsets, rows)
        differ = (first.spans[ours] != second.spans[theirs]).any(1) | (first.parts[ours] != second.parts[theirs])
        alike[rows] = ~np.logical_or.reduceat(differ, bounds[:-1])
    return alike


def _numbered(side: TokenRows, after: np.ndarray, alike: np.ndarray) -> np.ndarray:
    """(T,) int32 number of each piece's span in its row. after: pieces that a common boundary follows."""
    begins = alike[side.rows]
    begins[after + 1] = True
    begins[side.offsets[:-1]] = True
    number = np.cumsum(begins) - 1
    return (number - np.repeat(number[side.offsets[:-1]], np.diff(side.offsets))).astype(np.int32)


def _known(values: np.ndarray | None) -> np.ndarray:
    assert values is not None, "encode the rows with their spans"
    return values
