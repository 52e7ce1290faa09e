"""Rows of a parquet file from any row on, whatever its groups and columns are."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.errors import UserError
from compress.predict.rows.inputs import BadRow, TextColumns
from compress.predict.rows.parquet import count_rows, read_parquet

ONE = TextColumns(("text",))


def write(folder: Path, groups: list[int], name: str = "text", **more: list[object]) -> Path:
    """A file whose groups have so many rows, `t0`, `t1` …"""
    path, first = folder / "a.parquet", 0
    schema = pa.table({name: ["t"], **{key: values[:1] for key, values in more.items()}}).schema
    with pq.ParquetWriter(path, schema) as writer:
        for rows in groups:
            columns = {name: [f"t{first + i}" for i in range(rows)]}
            columns |= {key: values[first : first + rows] for key, values in more.items()}
            writer.write_table(pa.table(columns, schema=schema), row_group_size=max(1, rows))
            first += rows
    return path


def read(path: Path, first: int = 0, columns: TextColumns = ONE) -> list[str]:
    return [row.text for row in read_parquet(path, columns, first) if not isinstance(row, BadRow)]


@pytest.mark.parametrize("groups", [[5], [2, 3], [1, 1, 3], [2, 0, 3]])
def test_rows_from_any_row_on(groups: list[int], tmp_path: Path) -> None:
    path = write(tmp_path, groups)
    assert count_rows(path) == 5
    for first in range(7):
        assert read(path, first) == [f"t{i}" for i in range(first, 5)]


def test_a_file_without_rows(tmp_path: Path) -> None:
    assert read(write(tmp_path, [])) == []


def test_rows_are_numbered_in_the_file_also_where_reading_begins_later(tmp_path: Path) -> None:
    path = write(tmp_path, [2, 3], name="note")
    for first in (0, 3):
        found = list(read_parquet(path, ONE, first))
        assert all(isinstance(row, BadRow) and row.unit == "row" for row in found)
        assert [row.number for row in found if isinstance(row, BadRow)] == list(range(first + 1, 6))


def test_a_text_column_with_blanks_in_its_name_is_read_beside_an_id(tmp_path: Path) -> None:
    assert read(write(tmp_path, [2], name=" Text", id=["a", "b"])) == ["t0", "t1"]


def test_ids_go_along_and_other_columns_are_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, [2], id=["a", "b"], vector=[[1.0], [2.0]])
    found = list(read_parquet(path, ONE))
    assert [dict(row.beside) for row in found if not isinstance(row, BadRow)] == [{"id": "a"}, {"id": "b"}]


def test_a_damaged_group_is_one_line(tmp_path: Path) -> None:
    path = write(tmp_path, [500])
    data = bytearray(path.read_bytes())
    data[4:60] = bytes(56)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.parquet: cannot read this parquet file, it is damaged or truncated"):
        list(read_parquet(path, ONE))
