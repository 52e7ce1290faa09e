"""Words: columns of word lists, raw text cut into words, and which pieces of a tokenizer belong to which word."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import bounds_of
from compress.data.reading.columns import values_in
from compress.data.reading.frame import CHUNK, Column
from compress.data.tables.label_lists import lists
from compress.data.tables.table import first_rows
from compress.data.text.tokenizer import SHORTEST, Tokenizer, check_length
from compress.errors import UserError, format_count, printable

# A run of letters and digits with the marks that stand inside words and names, or one other character; Chinese,
# Japanese and Korean characters stand alone, as BERT's tokenizers cut them.
_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"[{_CJK}]|[@#]?(?:(?![{_CJK}])\w)+(?:[-'’.&](?:(?![{_CJK}])\w)+)*|[^\w\s]")

Place = tuple[int, int]


class JoinedWords(str):
    """The words of a list as a text, with spaces between them. places: of each word, none of which is cut again."""

    places: list[Place]

    @classmethod
    def of(cls, words: Sequence[str]) -> JoinedWords:
        """Of words, in their order."""
        text, places = join_with_places(words)
        made = cls(text)
        made.places = places
        return made


def locate_words(text: str) -> list[Place]:
    """The words of a text as characters from and up to: letters and digits, or single marks."""
    if isinstance(text, JoinedWords):
        return text.places
    return [match.span() for match in _WORD.finditer(text)]


def read_words(column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """(lists of strings, (N,) bool: rows without words). Raises UserError when values are no lists of text."""
    items, bounds, missing = lists(column, where, "words")
    plain = items if isinstance(items, list) else items.to_pylist()
    wrong = [i for i, word in enumerate(plain) if not isinstance(word, str)]
    if wrong:
        rows = np.unique(np.searchsorted(bounds, wrong, side="right"))
        raise UserError(
            f"{format_count(len(wrong), 'word')} that {'is' if len(wrong) == 1 else 'are'} not text "
            f"({first_rows(rows)})",
            where=where,
            why=f"the first is {printable(repr(plain[wrong[0]]), 60)}",
            do="write words as strings",
        )
    flat = pa.array(plain, pa.large_string())
    made = pa.LargeListArray.from_arrays(pa.array(bounds), flat)
    return pa.chunked_array([made]), missing | (np.diff(bounds) == 0)


def cut_words(column: Column) -> tuple[pa.ChunkedArray, np.ndarray]:
    """(lists of strings, (N,) bool: rows without words) of a column of plain text."""
    kind = pa.large_list(pa.large_string())
    parts, missing, values = [], [], values_in(column)
    while texts := [value or "" for value in islice(values, CHUNK)]:
        made = [[text[a:b] for a, b in locate_words(text)] for text in texts]
        parts.append(pa.array(made, kind))
        missing += [not row for row in made]
    return pa.chunked_array(parts, kind), np.array(missing, dtype=bool)


@dataclass(frozen=True)
class EncodedWindows:
    """Texts in windows of a length that the model reads. A text that fits is one window; windows of one stand together.

    ids: (T,) int32.  offsets: (W+1,) int64, window w is ids[offsets[w]:offsets[w+1]].  segments: (T,) uint8.
    owners: (W,) int64, place of the window's text, ascending.  words: (T,) int32, the word of its text that is answered
    at this token, its first piece; -1 elsewhere. A word that stands in two windows is answered where more is around it.
    """

    ids: np.ndarray
    offsets: np.ndarray
    segments: np.ndarray
    owners: np.ndarray
    words: np.ndarray
    cut: int = 0


def encode_places(
    tokenizer: Tokenizer, texts: Sequence[str], places: Sequence[Sequence[Place]], *, max_length: int
) -> EncodedWindows:
    """Texts with the places of their words, in windows of at most `max_length` tokens that share a quarter of that.

    A piece belongs to the word that its last character is in (some tokenizers count the space before a word to it).
    """
    check_length(max_length)
    shared = min(max_length // 4, max_length - SHORTEST)
    ids: list[int] = []
    segments: list[int] = []
    lengths: list[int] = []
    owners: list[int] = []
    spans: list[np.ndarray] = [np.zeros((0, 2), dtype=np.int64)]
    for row, window in tokenizer.encode_windows(texts, max_length=max_length, stride=shared):
        ids += window.ids
        segments += window.type_ids
        lengths.append(len(window))
        owners.append(row)
        spans.append(np.array(window.offsets, dtype=np.int64).reshape(-1, 2))
    flat, bounds, held = np.array(ids, dtype=np.int32), bounds_of(lengths), np.array(owners, dtype=np.int64)
    found = _first_pieces(np.concatenate(spans), tokenizer.special_mask(flat), bounds, held, texts, places)
    return EncodedWindows(flat, bounds, np.array(segments, dtype=np.uint8), held, found)


def _first_pieces(
    spans: np.ndarray,
    special: np.ndarray,
    bounds: np.ndarray,
    owners: np.ndarray,
    texts: Sequence[str],
    places: Sequence[Sequence[Place]],
) -> np.ndarray:
    """(T,) int32: see `EncodedWindows.words`. spans: (T, 2) characters of each token."""
    rows = np.repeat(owners, np.diff(bounds))
    # Words of all texts on one line of characters, so that one search finds the word of every piece.
    origin = bounds_of(len(text) + 1 for text in texts)[:-1]
    before = bounds_of(map(len, places))
    flat = np.array([place for row in places for place in row], dtype=np.int64).reshape(-1, 2)
    flat = flat + np.repeat(origin, np.diff(before))[:, None]
    filled = np.flatnonzero(flat[:, 1] > flat[:, 0])  # a word of no characters has no piece
    word = np.full(len(rows), -1, dtype=np.int64)  # of all texts, end to end
    if len(filled):
        last = spans[:, 1] - 1 + origin[rows]
        at = np.searchsorted(flat[filled, 0], last, side="right") - 1
        near = filled[np.maximum(at, 0)]
        inside = (at >= 0) & (spans[:, 1] > spans[:, 0]) & (last < flat[near, 1]) & ~special
        word[inside] = near[inside]
    first = word >= 0
    first[1:] &= word[1:] != word[:-1]
    # Where a window begins within a word, its first piece is not the word's.
    torn = np.concatenate([[False], owners[1:] == owners[:-1]])
    begins = (bounds[:-1] + 1)[torn]
    begins = begins[word[begins] >= 0]
    first[begins[spans[begins, 0] + origin[rows[begins]] > flat[word[begins], 0]]] = False
    chosen = _most_central(np.flatnonzero(first), word, bounds, owners)
    numbers = np.full(len(word), -1, dtype=np.int32)
    numbers[chosen] = word[chosen] - before[rows[chosen]]
    return numbers


def _most_central(tokens: np.ndarray, word: np.ndarray, bounds: np.ndarray, owners: np.ndarray) -> np.ndarray:
    """Of these tokens, one for each word: the one farthest from an edge at which its window was cut."""
    window = np.searchsorted(bounds, tokens, side="right") - 1
    alike = owners[1:] == owners[:-1]
    far = np.iinfo(np.int64).max
    left = np.where(np.append(False, alike)[window], tokens - bounds[window], far)
    right = np.where(np.append(alike, False)[window], bounds[window + 1] - 1 - tokens, far)
    ranked = np.lexsort((tokens, -np.minimum(left, right), word[tokens]))
    best = ranked[np.unique(word[tokens][ranked], return_index=True)[1]]
    return np.sort(tokens[best])


def join_with_places(words: Sequence[str]) -> tuple[str, list[Place]]:
    """The words as a text with spaces between them, and where each stands in it."""
    places, at = [], 0
    for word in words:
        places.append((at, at + len(word)))
        at += len(word) + 1
    return " ".join(words), places


def notes(made: EncodedWindows, counts: np.ndarray, numbers: np.ndarray, max_length: int) -> tuple[str, ...]:
    """What to say of texts that are read in windows, and of words that are nothing to the tokenizer.

    counts: (N,) words of each text.  numbers: (N,) what the rows are called.
    """
    told = []
    several = int((np.bincount(made.owners) > 1).sum())
    if several:
        told.append(
            f"{several:,} of {len(counts):,} texts are longer than {max_length} tokens and are split into overlapping "
            "windows"
        )
    answered = np.bincount(np.repeat(made.owners, np.diff(made.offsets))[made.words >= 0], minlength=len(counts))
    rows = np.flatnonzero(answered < counts)
    if len(rows):
        lost, where = format_count(int((counts - answered).sum()), "word"), first_rows(numbers[rows])
        told.append(
            f"no tokens for {lost} in {format_count(len(rows))} ({where}): not used for training, and counted as O, or "
            "as wrong, in evaluation"
        )
    return tuple(told)
