"""Texts in copies in which some words are others: which words, which of their candidates, and the rows that follow.

The drawing of TinyBERT's data augmentation (Jiao et al., arXiv 1909.10351, algorithm 1): each word of each copy becomes
another one with the probability `rate`, one of its candidates, all alike. Where candidates come from is not known here.
A word is a run of letters; marks and numbers stay. Contexts that questions are asked about stay too, since answers
are places in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import LabelArray
from compress.data.batches.randomness import stream
from compress.data.tables.table import Rows
from compress.data.text.words import Place, join_with_places, locate_words

KEPT = ("context",)


@dataclass(frozen=True)
class Passage:
    """A text of a row with the places of its words that may become others. words: of a list of words, the number of
    the item that stands at each place; None for a text."""

    text: str
    places: tuple[Place, ...]
    items: tuple[int, ...] | None = None

    def words(self) -> list[str]:
        """What stands at the places."""
        return [self.text[start:end] for start, end in self.places]


def passage(value: str | Sequence[str]) -> Passage:
    """Of a text, or of a list of words."""
    if isinstance(value, str):
        return Passage(value, tuple((s, e) for s, e in locate_words(value) if value[s:e].isalpha()))
    text, places = join_with_places(list(value))
    chosen = [i for i, word in enumerate(value) if word.isalpha()]
    return Passage(text, tuple(places[i] for i in chosen), tuple(chosen))


def passages(rows: Rows) -> Iterator[Passage]:
    """Those of all rows: row by row, of each its texts in the order of the columns."""
    roles = [role for role, column in rows.columns.items() if _holds_words(role, column)]
    columns = [rows.columns[role] for role in roles]
    for values in zip(*(_values(column) for column in columns), strict=True):
        yield from map(passage, values)


def replace_words(value: str | Sequence[str], found: Passage, others: Sequence[str | None]) -> str | list[str]:
    """The text (or list of words) with the word at each place replaced; None: it stays."""
    if not isinstance(value, str):
        words = list(value)
        assert found.items is not None
        for item, other in zip(found.items, others, strict=True):
            words[item] = words[item] if other is None else other
        return words
    parts, at = [], 0
    for (start, end), other in zip(found.places, others, strict=True):
        if other is not None:
            parts += [value[at:start], other]
            at = end
    return "".join([*parts, value[at:]])


@dataclass(frozen=True)
class Copies:
    """What was made. rows: the copies without their labels.  source: (N,) the place of each one's original.

    words, replaced: of all copies drawn, how many words could have become others, and how many did.
    """

    columns: dict[str, pa.ChunkedArray]
    source: np.ndarray
    words: int
    replaced: int

    def rows(self, originals: Rows, labels: LabelArray) -> Rows:
        """With these labels, one a copy."""
        return Rows(self.columns, labels, originals.numbers[self.source])


def copies(rows: Rows, candidates: Iterator[Sequence[Sequence[str]]], *, count: int, rate: float, seed: int) -> Copies:
    """`count` copies of each row with words replaced; a copy like its original, or like one before it, is left out.

    candidates: for each of `passages(rows)`, in its order, the candidates of each of its words (none: it stays).
    The draws of a row depend on the seed and on its place alone.
    """
    roles = [role for role, column in rows.columns.items() if _holds_words(role, column)]
    made: dict[str, list] = {role: [] for role in roles}
    source: list[int] = []
    words = replaced = 0
    for place, values in enumerate(zip(*(_values(rows.columns[role]) for role in roles), strict=True)):
        random = stream("rewording", seed, place)
        drawn = []
        for value in values:
            choices = next(candidates)
            hit = random.random((count, len(choices))) < rate
            which = random.random((count, len(choices)))
            can = np.array([bool(options) for options in choices], dtype=bool)
            hit &= can
            words += count * int(can.sum())
            replaced += int(hit.sum())
            drawn.append((value, passage(value), choices, hit, which))
        seen = {_key(values)}
        for copy in range(count):
            new = [
                replace_words(
                    value, found, [_pick(o, w) if h else None for o, h, w in zip(choices, hit[copy], which[copy])]
                )
                for value, found, choices, hit, which in drawn
            ]
            if _key(new) in seen:
                continue
            seen.add(_key(new))
            source.append(place)
            for role, value in zip(roles, new, strict=True):
                made[role].append(value)
    return _collect_copies(rows, made, source, words, replaced)


def mix_spans(rows: Rows, *, count: int, rate: float, seed: int) -> Copies:
    """`count` copies of each row in which a span of words is one of another row: `rate` of the words, at least one.

    Each text is mixed with the same text of the other row. The draws of a row depend on the seed and on its place.
    """
    roles = [role for role, column in rows.columns.items() if _holds_words(role, column)]
    texts = {role: list(_values(rows.columns[role])) for role in roles}
    made: dict[str, list] = {role: [] for role in roles}
    source: list[int] = []
    words = replaced = 0
    for place in range(len(rows) if len(rows) > 1 else 0):
        random = stream("mixing", seed, place)
        seen = {_key([texts[role][place] for role in roles])}
        for other in random.integers(len(rows) - 1, size=count).tolist():
            other += other >= place
            new = []
            for role in roles:
                text, there, taken = _mix(texts[role][place], texts[role][other], rate, random)
                new.append(text)
                words, replaced = words + there, replaced + taken
            if _key(new) in seen:
                continue
            seen.add(_key(new))
            source.append(place)
            for role, value in zip(roles, new, strict=True):
                made[role].append(value)
    return _collect_copies(rows, made, source, words, replaced)


def _collect_copies(rows: Rows, made: Mapping[str, list], source: Sequence[int], words: int, replaced: int) -> Copies:
    """Copies of the rows `source`: columns by role, the new values where there are some, else those of the row."""
    taken = np.array(source, dtype=np.int64)
    columns = {
        role: pa.chunked_array([pa.array(made[role], column.type)]) if role in made else column.take(pa.array(taken))
        for role, column in rows.columns.items()
    }
    return Copies(columns, taken, words, replaced)


def _mix(
    ours: str | Sequence[str], theirs: str | Sequence[str], rate: float, random: np.random.Generator
) -> tuple[str | list[str], int, int]:
    """(the text with a span of the other one, its words, how many of them were replaced)."""
    a, b = (locate_words(t) if isinstance(t, str) else [(i, i + 1) for i in range(len(t))] for t in (ours, theirs))
    size = min(max(1, round(rate * len(a))), len(a), len(b))
    at, of = (int(random.integers(max(1, len(places) - size + 1))) for places in (a, b))
    if not size:
        return (ours if isinstance(ours, str) else list(ours)), len(a), 0
    start, end = a[at][0], a[at + size - 1][1]
    span = theirs[b[of][0] : b[of + size - 1][1]]
    if isinstance(ours, str):
        return f"{ours[:start]}{span}{ours[end:]}", len(a), size
    return [*ours[:start], *span, *ours[end:]], len(a), size


def _pick(options: Sequence[str], draw: float) -> str:
    return options[int(draw * len(options))]


def _key(values: Sequence[str | Sequence[str]]) -> tuple:
    return tuple(value if isinstance(value, str) else tuple(value) for value in values)


def _holds_words(role: str, column: pa.ChunkedArray) -> bool:
    """Whether a column is text or lists of words that may be reworded."""
    kind = column.type
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return role not in KEPT and (text or pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _values(column: pa.ChunkedArray, size: int = 2048) -> Iterator:
    for start in range(0, len(column), size):
        yield from column.slice(start, size).to_pylist()
