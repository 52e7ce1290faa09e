"""Parquet and Arrow files: what they unpack to is bounded before it is unpacked, and their texts are checked.

A column of repeated values takes next to no room in a file: a few kilobytes can stand for a table larger than memory.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet as pq

from compress.errors import UserError

pc: Any = pyarrow.compute  # its functions are made when it is imported

ROW_LIMIT = 20_000_000  # rows of a table
UNPACKED_LIMIT = 1 << 33  # bytes that the columns of a parquet file take once their repeated values are written out


def read_parquet(path: Path) -> pa.Table:
    """The table in a parquet file. Raises UserError above the limits, and the errors of pyarrow."""
    with pq.ParquetFile(path, memory_map=True) as opened:
        found = opened.metadata
        require_rows(found.num_rows, path)
        groups = [found.row_group(i) for i in range(found.num_row_groups)]
        stored = sum(g.column(i).total_uncompressed_size for g in groups for i in range(g.num_columns))
        _require_size(stored, path)
        schema = opened.schema_arrow
        texts = [field.name for field in schema if _is_plain_text(field.type)]
    # Texts stay references to their distinct values until it is known how much room all of them take.
    table = pq.read_table(path, memory_map=True, read_dictionary=texts)
    repeated = [field.name for field in table.schema if pa.types.is_dictionary(field.type)]  # some say so themselves
    _require_size(stored + sum(_written_out(table.column(name)) for name in repeated), path)
    for name in texts:
        index = table.schema.get_field_index(name)
        # A column of more than 2 GiB has as many chunks as its offsets need.
        table = table.set_column(index, schema.field(name), _plain(table.column(name), schema.field(name).type))
    return table


def read_arrow(path: Path, head: bytes) -> pa.Table:
    """The table in an Arrow file of either layout, memory-mapped. Raises UserError above the limit of rows, and the
    errors of pyarrow."""
    source = pa.memory_map(os.fspath(path))
    opened = pa.ipc.open_file(source) if head.startswith(b"ARROW1") else pa.ipc.open_stream(source)
    table = opened.read_all()
    require_rows(table.num_rows, path)
    return table


def require_rows(rows: int, path: Path) -> None:
    """Raise UserError for more than ROW_LIMIT rows."""
    if rows > ROW_LIMIT:
        why = f"{rows:,} rows, limit {ROW_LIMIT:,}"
        raise UserError("the table has too many rows", where=str(path), why=why, do="use a part of them")


def require_utf8(table: pa.Table, path: Path, first: int = 0) -> None:
    """Raise UserError for bytes in a text column, or in lists of texts, that are not UTF-8. first: rows of the file
    before the table's."""
    for name, column in zip(table.column_names, table.columns, strict=True):
        if not _holds_text(column.type):
            continue
        start = first
        for chunk in column.chunks:
            if not _is_valid(chunk):
                raise _not_utf8(path, name, start + _first_bad(chunk))
            start += len(chunk)


def _not_utf8(path: Path, name: str, row: int) -> UserError:
    return UserError(
        f"column '{name}' contains bytes that are not UTF-8 text",
        where=str(path),
        why=f"row {row + 1:,}",
        do="write the file again with its texts as UTF-8",
    )


def _require_size(size: int, path: Path) -> None:
    if size > UNPACKED_LIMIT:
        why = f"{size / (1 << 30):,.1f} GiB, limit {UNPACKED_LIMIT >> 30} GiB"
        do = "split it into smaller files, or use a part of its rows"
        raise UserError("the file is too large once it is unpacked", where=str(path), why=why, do=do)


def _written_out(column: pa.ChunkedArray) -> int:
    """Bytes of the texts of a column of references."""
    total = 0
    for chunk in column.chunks:
        if not pa.types.is_dictionary(chunk.type):
            total += chunk.nbytes
            continue
        if not _holds_text(chunk.type) and not pa.types.is_binary(chunk.type.value_type):
            continue
        lengths = pc.fill_null(pc.binary_length(chunk.dictionary), 0)
        counts = pc.value_counts(chunk.indices.drop_null())
        used = pc.take(lengths, counts.field(0))
        total += pc.sum(pc.multiply(pc.cast(used, pa.int64()), counts.field(1))).as_py() or 0
    return total


def _plain(column: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    if not pa.types.is_dictionary(column.type):
        return column
    parts: list[pa.Array] = []
    for chunk in column.chunks:
        parts += _cast(chunk, kind)
    return pa.chunked_array(parts, kind)


def _cast(chunk: pa.Array, kind: pa.DataType) -> list[pa.Array]:
    """The texts that references stand for: in two halves, and so on, where they are too much for one array."""
    if len(chunk) > 1 and _written_out(pa.chunked_array([chunk])) >= 1 << 31:
        half = len(chunk) // 2
        return _cast(chunk.slice(0, half), kind) + _cast(chunk.slice(half), kind)
    return [chunk.cast(kind)]


def _is_plain_text(kind: pa.DataType) -> bool:
    return any(test(kind) for test in (pa.types.is_string, pa.types.is_large_string, pa.types.is_binary))


def _holds_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _holds_text(kind.value_type)
    if pa.types.is_nested(kind):
        return any(_holds_text(kind.field(i).type) for i in range(kind.num_fields))
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_valid(chunk: pa.Array) -> bool:
    try:
        chunk.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return not pa.types.is_dictionary(chunk.type) or _is_valid(chunk.dictionary)


def _first_bad(chunk: pa.Array) -> int:
    """Index of the first bad value of a chunk that has one."""
    if pa.types.is_dictionary(chunk.type):
        bad = _first_bad(chunk.dictionary)
        return pc.index(chunk.indices, bad).as_py()
    low, high = 0, len(chunk)
    while high - low > 1:
        middle = (low + high) // 2
        part = chunk.take(pa.array(range(low, middle)))  # a slice of lists is checked with what they are a slice of
        low, high = (middle, high) if _is_valid(part) else (low, middle)
    return low
