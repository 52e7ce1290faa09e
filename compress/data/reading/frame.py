"""One split as it was read, before anybody knows which column means what."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn

import pyarrow as pa

from compress.errors import UserError
from compress.storage.spill import LARGE, SpillFile

if TYPE_CHECKING:
    from datasets import Dataset

Column = pa.ChunkedArray | list[Any]  # a list where values of several types meet
CHUNK = 10_000  # rows put into Arrow at once
COLUMN_LIMIT = 10_000  # different keys of all rows
CELL_LIMIT = 400_000_000  # rows times columns: a key that most rows lack takes room in all of them
FIELD_LIMIT = 64  # different keys of the objects in a column, above which they are not put into Arrow


@dataclass(frozen=True)
class Frame:
    """Columns of one length. class_names: column → names of its ids, where the source says so."""

    columns: Mapping[str, Column]
    rows: int
    class_names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @classmethod
    def from_dataset(cls, dataset: Dataset) -> Frame:
        """The columns of a `datasets.Dataset`, memory-mapped where it is."""
        from datasets import ClassLabel, Value

        if dataset._indices is not None:  # a selection or shuffle that was saved as such
            dataset = dataset.flatten_indices()
        columns: dict[str, Column] = {}
        names: dict[str, Sequence[str]] = {}
        for name, feature in dataset.features.items():
            inner = getattr(feature, "feature", feature)  # of a list of class labels, such as tags
            if isinstance(inner, ClassLabel):
                names[name] = list(inner.names)
            if isinstance(feature, ClassLabel | Value) or not _is_json(feature):
                columns[name] = dataset.data.column(name)
            else:
                columns[name] = [None if v is None else json.loads(v) for v in dataset.data.column(name).to_pylist()]
        return cls(columns, len(dataset), names)

    @classmethod
    def from_rows(cls, rows: Sequence[Mapping[str, Any]]) -> Frame:
        builder = FrameBuilder()
        for row in rows:
            builder.add(row)
        return builder.finish()


def _is_json(feature: object) -> bool:
    return type(feature).__name__ == "Json"


class FrameBuilder:
    """Rows one by one into columns; a key that a row lacks reads None there.

    Types are never guessed or widened: a column whose values have several types stays a list, for whoever gives it a
    role to judge. (1 beside "x" is a mistake in labels and harmless in a column that nobody reads.)
    """

    def __init__(self, where: str = "") -> None:
        self._where = where
        self._columns: dict[str, list[list[Any] | pa.Array]] = {}
        self._spill: SpilledArrays | None = None
        self._bytes = 0
        self._open: dict[str, list[Any]] = {}
        self._names: set[str] = set()
        self._sizes: list[int] = []
        self._count = 0

    @property
    def rows(self) -> int:
        return sum(self._sizes) + self._count

    def add(self, row: Mapping[str, Any]) -> None:
        """Raises UserError for rows that have too many different keys between them."""
        for key, value in row.items():
            values = self._open.get(key)
            if values is None:
                self._names.add(key)
                if len(self._names) > COLUMN_LIMIT:
                    self._refuse_width(f"row {self.rows + 1:,} adds one to {COLUMN_LIMIT:,}, the limit")
                values = self._open[key] = []
            if len(values) < self._count:  # of rows that lack it: filled up where it comes again, and in the end
                values.extend([None] * (self._count - len(values)))
            values.append(value)
        self._count += 1
        if self._count == CHUNK:
            self._close()

    def finish(self) -> Frame:
        if self._count:
            self._close()
        if self._spill is not None:  # what came last too: its text must have the same type
            self._spill.take(self._columns)
        columns = self._columns if self._spill is None else self._spill.restore(self._columns)
        return Frame({name: self._joined(parts) for name, parts in columns.items()}, self.rows)

    def _close(self) -> None:
        width = len(self._names)
        if width * self.rows > CELL_LIMIT:
            self._refuse_width(f"{width:,} keys in {self.rows:,} rows or more, limit {CELL_LIMIT:,} cells")
        for name, values in self._open.items():
            values.extend([None] * (self._count - len(values)))
            # chunks from before this column was first seen
            parts = self._columns.setdefault(name, [pa.nulls(size) for size in self._sizes])
            parts.append(self._arrow(name, values))
        for name in self._columns.keys() - self._open.keys():
            self._columns[name].append(pa.nulls(self._count))
        self._sizes.append(self._count)
        self._open, self._count = {}, 0
        self._bytes += sum(p[-1].nbytes for p in self._columns.values() if not isinstance(p[-1], list))
        if self._bytes > LARGE:
            self._spill = self._spill or SpilledArrays()
            self._spill.take(self._columns)

    def _refuse_width(self, why: str) -> NoReturn:
        do = "leave out the keys that no model reads, or put them into one text"
        raise UserError("the rows have too many different keys", where=self._where or None, why=why, do=do)

    def _arrow(self, name: str, values: list[Any]) -> pa.Array | list[Any]:
        if len({type(value) for value in values} - {type(None)}) > 1 or _has_many_fields(values):
            return values
        try:
            return pa.array(values, from_pandas=False)
        except UnicodeEncodeError as error:
            row = next(i for i, value in enumerate(values) if _is_torn(value))
            raise UserError(
                f"the text in column '{name}' contains half a surrogate pair",
                where=self._where or None,
                why=f"row {sum(self._sizes) + row + 1}",
                do="write the character as a whole \\u pair or as UTF-8",
            ) from error
        except (pa.ArrowException, OverflowError):  # integers above 64 bits, lists of mixed types
            return values

    @staticmethod
    def _joined(parts: Sequence[list[Any] | pa.Array]) -> Column:
        arrays = [part for part in parts if not isinstance(part, list)]
        types = {part.type for part in arrays} - {pa.null()}
        if len(types) > 1 or len(arrays) < len(parts):
            return [v for part in parts for v in (part if isinstance(part, list) else part.to_pylist())]
        kind = types.pop() if types else pa.null()
        return pa.chunked_array([part.cast(kind) for part in arrays], kind)


class SpilledArrays:
    """Chunks of columns in a file, so that a large table is read in little memory."""

    def __init__(self) -> None:
        self._file = SpillFile()

    def take(self, columns: Mapping[str, list[Any]]) -> None:
        """Move the arrays of all columns into the file; a `_Place` stands where each was. Text gets 64-bit offsets,
        which it is read with."""
        for parts in columns.values():
            for i, part in enumerate(parts):
                if isinstance(part, pa.Array):
                    wide = part.cast(pa.large_string()) if pa.types.is_string(part.type) else part
                    batch = pa.record_batch([wide], names=["values"])
                    sink = pa.BufferOutputStream()
                    with pa.ipc.new_stream(sink, batch.schema) as writer:
                        writer.write_batch(batch)
                    self._file.align()
                    data = sink.getvalue()
                    parts[i] = _Place(self._file.append(data), data.size)

    def restore(self, columns: Mapping[str, list[Any]]) -> dict[str, list[Any]]:
        """The columns with their arrays, which lie in the mapped file."""
        whole = pa.py_buffer(self._file.map())
        return {
            name: [self._read(whole, part) if isinstance(part, _Place) else part for part in parts]
            for name, parts in columns.items()
        }

    @staticmethod
    def _read(whole: pa.Buffer, place: _Place) -> pa.Array:
        with pa.ipc.open_stream(whole.slice(place.start, place.size)) as reader:
            return reader.read_next_batch().column(0)


@dataclass(frozen=True)
class _Place:
    """Where an array lies in the file."""

    start: int
    size: int


def _has_many_fields(values: list[Any]) -> bool:
    """Whether the objects in a column have more than FIELD_LIMIT different keys: Arrow gives all of them to each."""
    seen: set[tuple[int, str]] = set()
    waiting = [(0, value) for value in values if isinstance(value, dict | list)]
    while waiting and len(seen) <= FIELD_LIMIT:
        depth, value = waiting.pop()
        if isinstance(value, dict):
            seen.update((depth, key) for key in value)
            value = value.values()
        waiting += [(depth + 1, inner) for inner in value if isinstance(inner, dict | list)]
    return len(seen) > FIELD_LIMIT


def _is_torn(value: Any) -> bool:
    return isinstance(value, str) and any(0xD800 <= ord(c) <= 0xDFFF for c in value)
