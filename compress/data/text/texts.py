"""Text columns → clean Arrow strings, and what is wrong with them told with counts and rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import marks
from compress.data.reading.columns import is_text
from compress.data.reading.frame import Column
from compress.data.tables.table import SLICE, Rows, first_rows, values_of
from compress.errors import UserError, format_count, printable
from compress.storage.spill import Spool, pieces

GROUP = 1 << 19
"""Rows that are looked through for repeats at once."""
LONG = 100_000  # characters above which a text is mentioned; encoding cuts it before it is tokenized


def read_text(column: Column, where: str) -> tuple[pa.ChunkedArray, np.ndarray]:
    """(strings, (N,) bool: rows without a text). Raises UserError when values are not text at all."""
    if is_text(column) and not isinstance(column, list):
        kind = pa.large_string()  # 32-bit offsets end at 2 GiB of text in one chunk
        values = column.cast(kind)
        return values, _nulls(values)
    values = column if isinstance(column, list) else column.to_pylist()
    rows: dict[str, list[int]] = {}
    for number, value in enumerate(values, start=1):
        if value is not None and not isinstance(value, str):
            rows.setdefault(type(value).__name__, []).append(number)
    if rows:
        kinds = ", ".join(f"{format_count(len(at), kind + ' value')} ({first_rows(at)})" for kind, at in rows.items())
        first = next(v for v in values if v is not None and not isinstance(v, str))
        raise UserError(
            "the text column contains values that are not text",
            where=where,
            why=f"{kinds}, the first is {printable(repr(first), 60)}",
            do="write them as strings, or name another text column",
        )
    array = pa.chunked_array([pa.array(values, pa.large_string())])
    return array, _nulls(array)


def _nulls(values: pa.ChunkedArray) -> np.ndarray:
    return np.asarray(values.is_null().to_numpy(), dtype=bool)


def is_empty(text: str) -> bool:
    """Whether there is nothing to read: no character, or white space alone."""
    return not text.strip()


def note_oddities(splits: Mapping[str, Rows], notes: list[str]) -> None:
    """Empty and very long texts: kept, and mentioned with counts and the first rows."""
    for split, rows in splits.items():
        for role, column in rows.columns.items():
            if pa.types.is_nested(column.type):  # words: whoever reads them judges them
                continue
            empty: list[int] = []
            long: list[int] = []
            longest = 0
            for start in range(0, len(rows), SLICE):
                for i, text in enumerate(values_of(column, start, SLICE), start):
                    if len(text) > LONG:
                        long.append(i)
                        longest = max(longest, len(text))
                    elif is_empty(text):
                        empty.append(i)
            if empty:
                where = first_rows(rows.numbers[empty])
                notes.append(f"{split}: {format_count(len(empty))} with an empty {_name(role)} ({where}), kept")
            if long:
                notes.append(
                    f"{split}: {format_count(len(long))} with a {_name(role)} above {LONG:,} characters "
                    f"({first_rows(rows.numbers[long])}, longest {longest:,}), truncated before tokenization"
                )


def note_repeats(splits: Mapping[str, Rows], notes: list[str]) -> None:
    """Rows of train that come again in validation or test, or in train itself with another label."""
    train = splits.get("train")
    if train is None:
        return
    known = hash_contents(train)
    repeats, conflicts = count_repeats(known, marks(train.labels))
    if repeats:
        also = f", {conflicts:,} of them with a different label" if conflicts else ""
        notes.append(f"train: {format_count(repeats)} identical to an earlier row{also}")
    for split in ("validation", "test"):
        rows = splits.get(split)
        if rows is None:
            continue
        again = is_among(hash_contents(rows), known)
        if again.any():
            share = 100 * again.mean()
            notes.append(
                f"{split}: {format_count(int(again.sum()))} of {len(rows):,} ({share:.1f} %) also found in train "
                f"({first_rows(rows.numbers[again])}): metrics on this split are too optimistic"
            )


def find_overlap(rows: Rows, others: Sequence[Rows], *, exact: bool = False) -> np.ndarray:
    """(N,) bool: rows whose texts are those of a row of the others, up to case and spaces. exact: to the letter."""
    contents = hash_contents(rows, exact)
    found = np.zeros(len(rows), bool)
    for other in others:
        found |= is_among(contents, hash_contents(other, exact))
    return found


def count_repeats(contents: np.ndarray, labels: np.ndarray) -> tuple[int, int]:
    """(rows whose content an earlier row has, rows whose first such row has another label). contents, labels: (N,)
    int64."""
    repeats = conflicts = 0
    for at in _alike(contents):
        group, marked = contents[at], labels[at]
        seen, first, inverse = np.unique(group, return_index=True, return_inverse=True)
        repeats += len(group) - len(seen)
        conflicts += int((marked != marked[first][inverse]).sum())
    return repeats, conflicts


def is_among(contents: np.ndarray, known: np.ndarray) -> np.ndarray:
    """(N,) bool: which of N contents are among the known ones."""
    found = np.zeros(len(contents), bool)
    for piece in pieces(known):
        found |= np.isin(contents, piece)
    return found


def _alike(contents: np.ndarray) -> Iterator[np.ndarray]:
    """Places of the contents, so many groups of them that each is small; equal contents are in the same group."""
    groups = -(-len(contents) // GROUP)
    for group in range(groups):
        found = [np.zeros(0, np.int64)]
        start = 0
        for piece in pieces(contents):
            found.append(np.flatnonzero(piece % groups == group) + start)
            start += len(piece)
        yield np.concatenate(found)


def hash_contents(rows: Rows, exact: bool = False) -> np.ndarray:
    """(N,) int64, equal for texts that differ in case and spaces only; of a giant text its start and length count.
    exact: equal for equal texts."""
    out = Spool(np.int64)
    for part in rows.contents():
        told = part if exact else (tuple(map(_folded, texts)) for texts in part)
        out.append(np.fromiter(map(hash, told), np.int64, len(part)))
    return out.finish()


def _folded(text: str) -> str:
    if len(text) > LONG:
        text = f"{text[:LONG]} {len(text)}"
    return " ".join(text.lower().split())


def _name(role: str) -> str:
    return role.replace("_", " ")
