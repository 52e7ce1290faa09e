"""A data set as the workbench holds it: columns by role, labels as numbers, and what was noticed on the way in."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import LabelArray, content
from compress.data.reading.frame import CHUNK, SpilledArrays
from compress.data.tables.label_order import show_names
from compress.errors import UserError, did_you_mean, without_folders
from compress.storage.spill import FAULT, LARGE, note_read, take

UNLABELLED = -100  # a class or tag that only a teacher can tell; also what torch's cross entropy skips. Scores: NaN
WORD_END = "\x1e"  # between the words of a row, where they are one string
SLICE = 2048  # rows handled at once: enough to amortise a call, few enough to stay in the cache


@dataclass(frozen=True)
class Rows:
    """One split. columns: role ("text", "text_pair", "words" ...) → strings, or lists of them, all of one length N.

    labels: one a row, as the task holds them: classes (N,) int64, scores (N,) float32, several labels (N, C) float32 of
    0 and 1, tags a `Ragged` of int64 as long as the words; UNLABELLED or NaN where there is none.
    numbers: (N,) int64, 1-based row numbers in the source.  others: name → a column that no model reads, by which rows
    are told apart.  taught: what a teacher said of each row, as logits: (N, C) float32, of tags a `Ragged` (W, C).
    documents: of a retrieval set, all texts that are searched; labels are then a `Ragged` (W, 2) of their rows and
    grades.
    """

    columns: Mapping[str, pa.ChunkedArray]
    labels: LabelArray
    numbers: np.ndarray
    others: Mapping[str, pa.ChunkedArray | list[Any]] = field(default_factory=dict)
    taught: LabelArray | None = None
    documents: pa.ChunkedArray | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def texts(self) -> list[str]:
        return self.columns["text"].to_pylist()

    @property
    def pairs(self) -> list[str] | None:
        """The second texts, or None when rows have one text."""
        column = self.columns.get("text_pair")
        return None if column is None else column.to_pylist()

    def slices(self, size: int = SLICE) -> Iterator[tuple[list[str], list[str] | None]]:
        """(texts, second texts) of consecutive rows, so that a large split never becomes one Python list."""
        for start in range(0, len(self), size):
            part = {role: values_of(column, start, size) for role, column in self.columns.items()}
            yield part["text"], part.get("text_pair")

    def contents(self, size: int = SLICE) -> Iterator[list[tuple[str, ...]]]:
        """The texts of consecutive rows, role after role; a list of words counts as one text."""
        for start in range(0, len(self), size):
            parts = [values_of(column, start, size) for column in self.columns.values()]
            yield [tuple(map(_as_text, row)) for row in zip(*parts, strict=True)]

    def take(self, indices: np.ndarray) -> Rows:
        """The rows at `indices`, in that order."""
        columns = {role: take_values(column, indices) for role, column in self.columns.items()}
        others = {
            name: [column[i] for i in indices] if isinstance(column, list) else take_values(column, indices)
            for name, column in self.others.items()
        }
        taught = None if self.taught is None else _take_labels(self.taught, indices)
        labels, numbers = _take_labels(self.labels, indices), take(self.numbers, indices)
        return Rows(columns, labels, numbers, others, taught, self.documents)


def _take_labels(labels: LabelArray, indices: np.ndarray) -> LabelArray:
    return take(labels, indices) if isinstance(labels, np.ndarray) else labels[indices]


@dataclass(frozen=True)
class Table:
    """A data set ready to encode.

    splits: "train", "validation", "test" (and "unlabelled" where there is one) → rows.  columns: role → name in the
    source.  fingerprint: sha256 of every value read, with roles and label names.  notes: what a person should hear.
    settings: of the task, for a model that is trained on the table (`Task.settings`).  name: as the caller gave it,
    for reading it again; for everything that others read there is `display_name`.  source_fingerprint: of the labelled
    data, before labels were hidden and unlabelled text of another source was added; empty: the same as fingerprint.
    language: codes such as `en`, as the makers of the data say.
    """

    splits: Mapping[str, Rows]
    task: str
    label_names: Sequence[str]
    columns: Mapping[str, str]
    fingerprint: str
    name: str
    notes: Sequence[str] = field(default_factory=tuple)
    settings: Mapping[str, Any] = field(default_factory=dict)
    source_fingerprint: str = ""
    language: Sequence[str] = ()

    @property
    def measured_fingerprint(self) -> str:
        """What figures on its rows are compared by: that of the labelled data as it was read."""
        return self.source_fingerprint or self.fingerprint

    @property
    def display_name(self) -> str:
        """Its name in models, pages and the store: without the folders of this machine."""
        return without_folders(self.name)

    @property
    def summary(self) -> str:
        """Its name, the sizes of its splits, and its labels."""
        sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in self.splits.items())
        labels = f"; labels: {show_names(self.label_names)}" if self.label_names else ""
        return f"{self.name}: {sizes}{labels}"

    def split(self, name: str) -> Rows:
        """The rows of one split; UserError naming the splits there are."""
        if name not in self.splits:
            raise UserError(f"split '{name}' not found", where=self.name, do=did_you_mean(name, self.splits))
        return self.splits[name]


def fingerprint(splits: Mapping[str, Rows], task: str, label_names: Sequence[str]) -> str:
    """sha256 over the content: equal for the same values whatever file format or chunking brought them."""
    digest = hashlib.sha256(json.dumps(["table-1", task, list(label_names)], ensure_ascii=True).encode())
    for name in sorted(splits):
        rows = splits[name]
        digest.update(json.dumps([name, len(rows), sorted(rows.columns)]).encode())
        for role in sorted(rows.columns):
            for start in range(0, len(rows), SLICE):
                for value in values_of(rows.columns[role], start, SLICE):
                    data = _as_text(value).encode()
                    digest.update(len(data).to_bytes(8, "little"))  # so that no two lists of texts run together alike
                    digest.update(data)
        for start in range(0, 0 if rows.documents is None else len(rows.documents), SLICE):
            for value in values_of(rows.documents, start, SLICE):
                digest.update(len(data := value.encode()).to_bytes(8, "little") + data)
        for data in content(rows.labels):
            digest.update(data)
        for data in () if rows.taught is None else content(rows.taught):
            digest.update(data)
    return digest.hexdigest()


def values_of(column: pa.ChunkedArray, start: int, count: int) -> list[Any]:
    """So many values of a column from a place on, as Python objects."""
    part = column.slice(start, count)
    note_read(part.nbytes)
    return part.to_pylist()


def take_values(column: pa.ChunkedArray, indices: np.ndarray) -> pa.ChunkedArray:
    """The values at these places, in that order, in a file where they are many."""
    if column.nbytes <= LARGE or not len(indices):
        return column.take(pa.array(indices))
    held = SpilledArrays()
    parts: dict[str, list[Any]] = {"": []}
    bounds = np.cumsum([0, *(len(chunk) for chunk in column.chunks)])
    for start in range(0, len(indices), CHUNK):
        parts[""].append(_take_few(column, bounds, indices[start : start + CHUNK]))
        held.take(parts)
    chunks = held.restore(parts)[""]
    return pa.chunked_array(chunks, chunks[0].type)


def _take_few(column: pa.ChunkedArray, bounds: np.ndarray, indices: np.ndarray) -> pa.Array:
    """The values at a few places, chunk by chunk: `take` of Arrow puts all chunks together first. bounds: where each
    chunk begins, and the end."""
    chunk_of = np.searchsorted(bounds, indices, side="right") - 1
    by_chunk = np.argsort(chunk_of, kind="stable")
    taken = []
    for number in np.unique(chunk_of):
        here = by_chunk[
            np.searchsorted(chunk_of[by_chunk], number) : np.searchsorted(chunk_of[by_chunk], number, "right")
        ]
        chunk = column.chunk(int(number))
        note_read(min(chunk.nbytes, 2 * FAULT * len(here)))
        taken.append(chunk.take(pa.array(indices[here] - bounds[number])))
    back = np.empty(len(indices), dtype=np.int64)
    back[by_chunk] = np.arange(len(indices))
    return pa.concat_arrays(taken).take(pa.array(back))


def _as_text(value: Any) -> str:
    """A cell as one string: words are told apart by a character that is in no word."""
    return value if isinstance(value, str) else WORD_END.join(map(str, value))


def first_rows(numbers: Sequence[int] | np.ndarray, limit: int = 3) -> str:
    """`row 7` or `rows 7, 9, 12 …`: where a person starts to look."""
    shown = ", ".join(str(int(n)) for n in numbers[:limit])
    return f"row{'' if len(numbers) == 1 else 's'} {shown}{' …' if len(numbers) > limit else ''}"


def drop_rows(
    told: str, where: str, bad_rows: str, notes: list[str], fix: str, *, which: str = "them", why: str | None = None
) -> None:
    """Note that rows which are `told` are dropped. Raises UserError where `bad_rows` is "refuse".

    fix: what else helps, such as `fill them in`.  which: they are, in the advice to drop them.  why: of the error.
    """
    if bad_rows == "refuse":
        do = f"{fix}, or drop {which} with --bad-rows drop (data.bad_rows: drop)"
        raise UserError(told, where=where, why=why, do=do)
    notes.append(f"{where}: {told}, dropped")


def spread_places(count: int, most: int) -> np.ndarray:
    """At most so many places of `count` rows, evenly spaced, ascending."""
    return np.unique(np.linspace(0, count - 1, min(most, count)).astype(np.int64))
