"""Rows of files in shards: the same rows as of the whole file, in every format, from whichever shard reading begins."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.commands.predict import _count
from compress.data.reading.text_files import CsvForm, check_csv, csv_rows
from compress.errors import UserError
from compress.predict.rows.inputs import EMBEDDED, BadRow, PredictionInput, Row
from compress.predict.rows.plan import Plan, plan_shards
from compress.predict.rows.reading import LineCounter, list_files, read_rows
from compress.predict.rows.shards import ShardReader
from compress.storage import claims

TEXTS = [f"row {n}" for n in range(11)]


def write_text(folder: Path) -> Path:
    path = folder / "a.txt"
    path.write_bytes(b"\xef\xbb\xbf" + "\r\n".join(TEXTS).encode())
    return path


def write_jsonl(folder: Path) -> Path:
    path = folder / "a.jsonl"
    path.write_text("\n\n".join(json.dumps({"text": text}) for text in TEXTS) + "\n \n")
    return path


def write_csv(folder: Path) -> Path:
    path = folder / "a.csv"
    path.write_text("id;text\n" + "\n".join(f'"a\n""b""";{text}' for text in TEXTS))
    return path


def write_parquet(folder: Path) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table({"text": TEXTS, "other": [None] * 11}), path, row_group_size=4)
    return path


def texts_of(rows: list[Row | None]) -> list[str]:
    return [row.text for row in rows if isinstance(row, PredictionInput)]


@pytest.mark.parametrize("write", [write_text, write_jsonl, write_csv, write_parquet])
def test_shards_have_the_rows_of_the_file(write: Callable[[Path], Path], tmp_path: Path) -> None:
    path = write(tmp_path)
    assert texts_of(list(read_rows(path, EMBEDDED))) == TEXTS
    plan = plan_shards([path], EMBEDDED, 3)
    assert [(shard.first, shard.rows) for shard in plan.shards] == [(0, 3), (3, 3), (6, 3), (9, 2)]
    for numbers in ((0, 1, 2, 3), (1, 3), (2,), (3, 0)):
        reader = ShardReader(plan, EMBEDDED)
        for number in numbers:
            assert texts_of(list(reader.read(plan.shards[number]))) == TEXTS[3 * number : 3 * number + 3]
    assert Plan.from_json(json.loads(json.dumps(plan.as_json()))) == plan


def test_an_empty_line_of_texts_is_a_bad_row_except_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("a\nb\n\n \ne\n\ng\n\n\n \n")
    plan = plan_shards([path], EMBEDDED, 3)
    assert [shard.rows for shard in plan.shards] == [3, 3, 1]
    rows = [list(ShardReader(plan, EMBEDDED).read(shard)) for shard in plan.shards]
    assert [texts_of(part) for part in rows] == [["a", "b"], ["e"], ["g"]]
    bad = [row.as_json() for part in rows for row in part if isinstance(row, BadRow)]
    assert [(one["line"], one["reason"]) for one in bad] == [(n, "the line is empty") for n in (3, 4, 6)]
    path.write_text("a\n" + "\n" * 9)
    assert [shard.rows for shard in plan_shards([path], EMBEDDED, 3).shards] == [1]


@pytest.mark.parametrize(("objects", "rows"), [(False, [1, 0, 0, 3, 1, 0]), (True, [1, 0, 0, 1, 1, 0])])
def test_lines_are_counted_by_one_rule(objects: bool, rows: list[int]) -> None:
    counter = LineCounter(objects=objects)
    assert [counter.add(line) for line in (b"a\n", b"\n", b" \r\n", b"b\n", b"c\n", b"\t")] == rows
    assert counter.rows == sum(rows)
    assert counter.seen == counter.rows + (not objects)


@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
@pytest.mark.parametrize("lines", list(itertools.product(["", '{"text": "x"}'], repeat=4)))
def test_who_counts_the_rows_finds_those_that_are_read(name: str, lines: tuple[str, ...], tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text("\n".join(lines))
    count = len(list(read_rows(path, EMBEDDED)))
    assert _count(path, EMBEDDED) == count
    if count:
        assert plan_shards([path], EMBEDDED, 2).rows == count


def test_a_shard_goes_on_in_the_next_file(tmp_path: Path) -> None:
    for name, texts in (("b", TEXTS[:4]), ("c", []), ("a/d", TEXTS[4:5]), ("e", TEXTS[5:])):
        path = tmp_path / f"{name}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{text}\n" for text in texts))
    (tmp_path / "README.md").touch()
    (tmp_path / ".hidden.txt").write_text("x")
    files = [tmp_path / f"{name}.txt" for name in ("b", "c", "a/d", "e")]
    assert list_files(tmp_path) == sorted(files)
    plan = plan_shards(files, EMBEDDED, 3)
    assert [(shard.first, [piece.rows for piece in shard.pieces]) for shard in plan.shards] == [
        (0, [3]), (3, [1, 1, 1]), (6, [3]), (9, [2]),
    ]  # fmt: skip
    reader = ShardReader(plan, EMBEDDED)
    assert texts_of([row for shard in plan.shards for row in reader.read(shard)]) == TEXTS


def test_what_cannot_be_predicted_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the folder has no files of rows; known: \.jsonl"):
        list_files(tmp_path)
    (tmp_path / "a.txt").touch()
    with pytest.raises(UserError, match="there are no rows"):
        plan_shards(list_files(tmp_path), EMBEDDED, 3)
    (tmp_path / "b.arrow").touch()
    with pytest.raises(UserError, match=r"b\.arrow: rows of '\.arrow' files cannot be predicted; write it as one of"):
        list_files(tmp_path)
    (tmp_path / "c.parquet").write_bytes(b"PAR1" + bytes(100))
    with pytest.raises(UserError, match=r"c\.parquet: cannot read this parquet file, it is damaged or truncated"):
        plan_shards([tmp_path / "c.parquet"], EMBEDDED, 3)


def test_a_file_that_changes_is_noticed(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path)
    plan = plan_shards([path], EMBEDDED, 8)
    assert plan.files[0].is_unchanged()
    path.write_text(json.dumps({"text": "x"}))
    assert not plan.files[0].is_unchanged()
    with pytest.raises(UserError, match="the file changed while it was read"):
        list(ShardReader(plan, EMBEDDED).read(plan.shards[0]))
    path.unlink()
    assert not plan.files[0].is_unchanged()


def test_bad_cells_of_parquet_are_rows_of_their_own(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    raw = pa.array([b"a", None, b"\xff", b" ", b"b"], pa.binary())
    pq.write_table(pa.table({"text": pa.Array.from_buffers(pa.string(), 5, raw.buffers())}), path)
    rows = list(read_rows(path, EMBEDDED))
    assert texts_of(rows) == ["a", "b"]
    bad = [row.as_json() for row in rows if isinstance(row, BadRow)]
    assert [one["row"] for one in bad] == [2, 3, 4]
    assert {one["reason"] for one in bad} == {"the text is empty or not text"}
    pq.write_table(pa.table({"text": ["x"], "id": [date(2026, 1, 2)]}), path)
    assert list(read_rows(path, EMBEDDED)) == [PredictionInput("x", None, {"id": "2026-01-02"})]
    pq.write_table(pa.table({"words": ["x"]}), path)
    (only,) = read_rows(path, EMBEDDED)
    assert isinstance(only, BadRow)
    assert only.error.line() == f"{path}: row 1: the row has no text; name its column with --text-column; known: words"


@pytest.mark.parametrize(
    ("content", "quoted", "bad"),
    [
        ('text\tlabel\n"a\tb"\tx\n', True, 0),
        ('text\tlabel\nan "odd" one\tx\n"open\ty\n', False, 0),
        ('text\tlabel\n"a\tb"\tx\nalone\n', True, 1),
        ('text\tlabel\n"open\tx\nalone\n', False, 1),
    ],
)
def test_how_a_tsv_file_is_quoted_with_and_without_bad_rows(
    content: str, quoted: bool, bad: int, tmp_path: Path
) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(content)
    form, _ = check_csv(path, [], lenient=True)
    assert form == CsvForm("\t", quoted)
    assert sum(isinstance(row, UserError) for _, row in csv_rows(path, form)) == bad
    if bad:
        with pytest.raises(UserError, match="cells, the header has 2"):
            check_csv(path, [])


def test_a_name_is_taken_once_until_all_are_given_back(tmp_path: Path) -> None:
    claims.clear(tmp_path)
    assert [claims.take(tmp_path, name) for name in ("a", "a", "b")] == [True, False, True]
    assert (claims.is_taken(tmp_path, "a"), claims.is_taken(tmp_path, "c")) == (True, False)
    claims.clear(tmp_path)
    assert claims.take(tmp_path, "a")
