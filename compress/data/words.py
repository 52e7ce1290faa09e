"""Words: columns of word lists, raw text cut into words, and which pieces of a tokenizer belong to which word."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from compress.data.frame import Column
from compress.data.label_lists import is_list, lists
from compress.data.table import counted, first_rows
from compress.data.tokenizer import Encoded, Tokenizer
from compress.errors import UserError, printable

# A run of letters and digits with the marks that stand inside words and names, or one other character; Chinese,
# Japanese and Korean characters stand alone, as BERT's tokenizers cut them.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[@#]?(?:(?![{_CJK}])\w)+(?:[-'’.&](?:(?![{_CJK}])\w)+)*|[^\w\s]")

Place = tuple[int, int]


def cut(text: str) -> list[Place]:
    """The words of a text as characters from and up to: letters and digits, or single marks."""
    return [match.span() for match in _WORD.finditer(text)]


def read_words(column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """(lists of strings, (N,) bool: rows without words). Raises UserError when values are no lists of text."""
    if not is_list(column):
        kind = "several types" if isinstance(column, list) else str(column.type)
        raise UserError("a list of words a row is needed", where=where, why=f"the column holds {kind}")
    items, bounds, missing = lists(column, where, "words")
    plain = items if isinstance(items, list) else items.to_pylist()
    wrong = [i for i, word in enumerate(plain) if not isinstance(word, str)]
    if wrong:
        rows = np.unique(np.searchsorted(bounds, wrong, side="right"))
        raise UserError(
            f"{counted(len(wrong), 'word')} that {'is' if len(wrong) == 1 else 'are'} not text ({first_rows(rows)})",
            where=where,
            why=f"the first is {printable(repr(plain[wrong[0]]), 60)}",
            do="write words as strings",
        )
    flat = pa.array(plain, pa.large_string())
    made = pa.LargeListArray.from_arrays(pa.array(bounds), flat)
    return pa.chunked_array([made]), missing | (np.diff(bounds) == 0)


def encode_places(
    tokenizer: Tokenizer, texts: Sequence[str], places: Sequence[Sequence[Place]], *, max_length: int
) -> tuple[Encoded, np.ndarray]:
    """Texts with the places of their words → (encoded texts, (T,) int32: the word whose first piece it is, else -1).

    A piece belongs to the word that its last character is in (some tokenizers count the space before a word to it).
    """
    made = tokenizer.encode_batch(texts, max_length=max_length, spans=True)
    assert made.spans is not None
    ends = made.spans[:, 1].astype(np.int64)
    owners = np.repeat(np.arange(len(texts)), np.diff(made.offsets))
    # Words of all texts on one line of characters, so that one search finds the word of every piece.
    widths = np.array([len(text) + 1 for text in texts], dtype=np.int64)
    origin = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])[:-1]
    counts = np.array([len(row) for row in places], dtype=np.int64)
    flat = np.array([place for row in places for place in row], dtype=np.int64).reshape(-1, 2)
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])[:-1]
    shift = np.repeat(origin, counts)
    starts, stops = flat[:, 0] + shift, flat[:, 1] + shift
    last = ends - 1 + origin[owners]
    filled = np.flatnonzero(stops > starts)  # a word of no characters has no piece
    found = np.full(len(ends), -1, dtype=np.int64)
    if len(filled):
        at = np.searchsorted(starts[filled], last, side="right") - 1
        word = filled[np.maximum(at, 0)]
        inside = (at >= 0) & (ends > made.spans[:, 0]) & (last < stops[word]) & (last >= starts[word])
        inside &= ~tokenizer.special_mask(made.ids)
        found[inside] = word[inside]
    first = np.ones(len(found), dtype=bool)
    first[1:] = found[1:] != found[:-1]
    numbers = np.where((found >= 0) & first, found - before[owners], -1)
    return made, numbers.astype(np.int32)


def joined(words: Sequence[str]) -> tuple[str, list[Place]]:
    """The words as a text with spaces between them, and where each stands in it."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return " ".join(words), places


def note_lost(words: np.ndarray, counts: np.ndarray, offsets: np.ndarray, numbers: np.ndarray) -> tuple[str, ...]:
    """What to say of words that got no piece. counts: (N,) words of each row; the rest as `Examples` has it."""
    owners = np.repeat(np.arange(len(counts)), np.diff(offsets))
    answered = np.bincount(owners[words >= 0], minlength=len(counts))
    lost = counts - answered
    if not lost.any():
        return ()
    total, rows = int(lost.sum()), np.flatnonzero(lost)
    return (
        f"{counted(total, 'word')} in {counted(len(rows))} ({first_rows(numbers[rows])}) got no piece, being cut or "
        "nothing to the tokenizer: no answer to them is learned, and in measuring they count as O, or wrong",
    )
