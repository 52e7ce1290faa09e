"""Small files that stand for much memory, and texts that are none: bounded by stated limits, or read within them."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.data.reading import columnar, frame, text_files
from compress.data.reading.corpus import open_corpus
from compress.data.reading.sources import open_table
from compress.errors import ExitCode, UserError


def refusal(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        open_table(str(path))
    assert caught.value.code == ExitCode.INPUT
    return caught.value.line()


def repeated(text: str, rows: int) -> pa.Table:
    """One text and one label in all rows: a few kilobytes in a file."""
    references = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), rows), [text])
    return pa.table({"text": references, "label": pa.repeat(pa.scalar(0, pa.int8()), rows)})


def test_a_parquet_file_of_too_many_rows_is_rejected_unread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "ROW_LIMIT", 1000)
    path = tmp_path / "a.parquet"
    pq.write_table(repeated("a", 1001), path)
    monkeypatch.setattr(pq, "read_table", lambda *_, **__: pytest.fail("read"))
    assert refusal(path) == f"{path}: the table has too many rows: 1,001 rows, limit 1,000; use a part of them"


def test_an_arrow_file_of_too_many_rows_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "ROW_LIMIT", 1000)
    path = tmp_path / "a.arrow"
    table = repeated("a", 1001)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    assert "the table has too many rows: 1,001 rows, limit 1,000" in refusal(path)


def test_repeated_texts_are_counted_before_they_are_written_out(tmp_path: Path) -> None:
    """20,000 references to one text of half a megabyte: 9 GiB of texts in a small file."""
    path = tmp_path / "a.parquet"
    pq.write_table(repeated("x" * 500_000, 20_000), path)
    assert path.stat().st_size < 1_000_000
    line = refusal(path)
    assert line.startswith(f"{path}: the file is too large once it is unpacked: 9.3 GiB, limit 8 GiB; ")


def test_texts_that_the_file_repeats_are_counted_too(tmp_path: Path) -> None:
    """As above, of a column that is called text: only the pages of the file hold references."""
    path = tmp_path / "a.parquet"
    pq.write_table(repeated("x" * 500_000, 20_000), path, row_group_size=1000, store_schema=False)
    assert pq.read_schema(path).field("text").type == pa.string()
    assert "the file is too large once it is unpacked: 9.3 GiB, limit 8 GiB" in refusal(path)


def test_references_are_read_as_the_texts_they_stand_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.parquet"
    texts = ["good", "bad", None, "good", "fine"] * 5
    plain = pa.table({"text": texts, "label": ["x", "y", "x", "y", "x"] * 5})
    pq.write_table(plain, path, row_group_size=7)
    assert columnar.read_parquet(path).to_pydict() == plain.to_pydict()
    assert columnar.read_parquet(path).schema == plain.schema


def test_texts_too_large_for_one_array_come_in_several() -> None:
    references = pa.DictionaryArray.from_arrays(pa.repeat(pa.scalar(0, pa.int32()), 5), ["x" * 1000])
    assert [len(part) for part in columnar._cast(references, pa.string())] == [5]
    assert columnar._written_out(pa.chunked_array([references])) == 5000


def bad_text(values: list[bytes], kind: pa.DataType | None = None) -> pa.Array:
    """Bytes that are called text."""
    return pa.array(values, pa.binary()).view(kind or pa.string())


BAD = [b"fine", b"also", b"ca\xff\xfet", b"good"]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
@pytest.mark.parametrize("where", ["text", "label"])
def test_bytes_that_are_not_text_are_named_by_row(kind: str, where: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{kind}"
    columns: dict[str, object] = {"text": ["a", "b", "c", "d"], "label": ["x", "y", "x", "y"]}
    table = pa.table({**columns, where: bad_text(BAD)})
    if kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    assert refusal(path) == (
        f"{path}: column '{where}' contains bytes that are not UTF-8 text: row 3; "
        "write the file again with its texts as UTF-8"
    )


def test_bytes_inside_lists_are_found(tmp_path: Path) -> None:
    words = pa.ListArray.from_arrays(pa.array([0, 2, 4], pa.int32()), bad_text(BAD))
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"tokens": words, "tags": [["O", "O"], ["O", "O"]]}), path)
    assert "column 'tokens' contains bytes that are not UTF-8 text: row 2" in refusal(path)


def test_a_corpus_of_bytes_names_the_row(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": bad_text([b"fine"] * 300 + [b"\xff"])}), path, row_group_size=100)
    with pytest.raises(UserError, match="column 'text' contains bytes that are not UTF-8 text: row 301"):
        list(open_corpus(str(path)).documents())


# --- keys ---------------------------------------------------------------------------------------------------------


def write_rows(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_rows_with_other_keys_each_are_bounded(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x", **{f"k{i}-{j}": 1 for j in range(5000)}} for i in range(3)]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert refusal(path) == (
        f"{path}: the rows have too many different keys: row 2 adds one to 10,000, the limit; "
        "leave out the keys that no model reads, or put them into one text"
    )


def test_a_key_that_few_rows_have_takes_room_in_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "CELL_LIMIT", 1000)
    monkeypatch.setattr(frame, "CHUNK", 10)
    rows = [{"text": "a", "label": "x", f"k{i % 50}": 1} for i in range(100)]
    assert "42 keys in 40 rows or more, limit 1,000 cells" in refusal(write_rows(tmp_path / "a.jsonl", list(rows)))


def test_keys_that_come_and_go_are_empty_where_they_lack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "CHUNK", 3)
    rows = [{"a": i, **({"b": i} if i % 3 == 1 else {}), **({"c": i} if i == 6 else {})} for i in range(8)]
    builder = frame.FrameBuilder()
    for row in rows:
        builder.add(row)
    built = builder.finish()
    for name in "abc":
        column = built.columns[name]
        values = column.to_pylist() if isinstance(column, pa.ChunkedArray) else column
        assert values == [row.get(name) for row in rows]


def test_an_inner_object_of_many_keys_is_rejected_with_its_line(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y", "more": {f"k{i}": 1 for i in range(10_001)}}]
    path = write_rows(tmp_path / "a.jsonl", rows)
    assert refusal(path) == f"{path}:2: an object has 10,001 keys: limit {text_files.KEY_LIMIT:,}"


def test_objects_with_keys_of_their_own_stay_objects() -> None:
    """Arrow would give every object all keys of the column: with 2,000 rows of 100 keys each, 40 GB."""
    values = [{f"k{i}-{j}": 1 for j in range(100)} for i in range(2000)]
    builder = frame.FrameBuilder()
    for value in values:
        builder.add({"more": value})
    assert builder.finish().columns["more"] == values


def test_an_object_with_few_keys_goes_into_arrow() -> None:
    builder = frame.FrameBuilder()
    for i in range(20):
        builder.add({"more": {"a": i, "b": {"c": [i]}}})
    assert isinstance(builder.finish().columns["more"], pa.ChunkedArray)
