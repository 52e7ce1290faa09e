"""Rows of a parquet file, a few at a time, from any row on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from compress.data.reading.columns import fold_name
from compress.data.reading.files import look, make_damaged_error
from compress.data.reading.remote import Place
from compress.predict.file_batches import WINDOW
from compress.predict.rows.inputs import Row, TextColumns, build_row


def count_rows(file: Place) -> int:
    """Rows of the file, by its own record. Raises UserError for a damaged one."""
    with ExitStack() as stack:
        return _open(file, stack).metadata.num_rows


def read_parquet(file: Place, columns: TextColumns, first: int = 0) -> Iterator[Row]:
    """The rows from `first` on, counted from 0; groups of rows before it are not read. Raises UserError for a damaged
    file."""
    with ExitStack() as stack:
        opened = _open(file, stack)
        groups, number = [], 0
        for place in range(opened.num_row_groups):
            rows = opened.metadata.row_group(place).num_rows
            if number + rows <= first and not groups:
                number += rows
            else:
                groups.append(place)
        wanted = {*columns.first, *columns.second, *columns.kept, "id"}
        names = [name for name in opened.schema_arrow.names if wanted & {name, fold_name(name)}]
        if not names or not columns.kept.keys() <= set(names):  # each row is then told what it lacks
            names = opened.schema_arrow.names
        try:
            for batch in opened.iter_batches(batch_size=WINDOW, row_groups=groups, columns=names):
                past = min(max(0, first - number), len(batch))
                for row in zip(*_to_lists(batch.slice(past)), strict=True):
                    past += 1
                    yield build_row(file, "row", number + past, dict(zip(names, row, strict=True)), columns)
                number += len(batch)
        except (pa.ArrowException, OSError) as error:
            raise make_damaged_error(file, "parquet", error) from error


def _open(file: Place, stack: ExitStack) -> pq.ParquetFile:
    look(file)
    try:
        if isinstance(file, Path):
            return stack.enter_context(pq.ParquetFile(file, memory_map=True))
        return stack.enter_context(pq.ParquetFile(stack.enter_context(file.open())))
    except (pa.ArrowException, OSError) as error:
        raise make_damaged_error(file, "parquet", error) from error


def _to_lists(batch: pa.RecordBatch) -> list[list[Any]]:
    """The values of each column; bytes where a text is not UTF-8."""
    found = []
    for column in batch.columns:
        try:
            found.append(column.to_pylist())
        except UnicodeDecodeError:
            found.append([_decode(value) for value in column.cast(pa.large_binary()).to_pylist()])
    return found


def _decode(value: bytes | None) -> str | bytes | None:
    try:
        return None if value is None else value.decode()
    except UnicodeDecodeError:
        return value
