"""Text without labels joins the unlabelled rows, whatever file it comes in; what is left out is counted."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.text.texts import find_overlap
from compress.errors import UserError

Write = Callable[..., Path]
LABELLED = [{"text": f"row {i}", "label": ("bad", "good")[i % 2]} for i in range(12)]
PAIRS = [{"premise": f"a {i}", "hypothesis": f"b {i}", "label": ("no", "yes", "maybe")[i % 3]} for i in range(12)]
TAGS = [{"tokens": ["she", "saw", f"anna{i}"], "ner_tags": ["O", "O", "B-PER"]} for i in range(12)]
QUESTIONS = [
    {"question": f"who is {i}?", "context": f"anna is {i}.", "answers": {"text": ["anna"], "answer_start": [0]}}
    for i in range(12)
]


def opened(write: Write, rows: Any, unlabelled: Path, **how: Any) -> Table:
    folder = write("data/train.jsonl", rows).parent
    return open_table(str(folder), unlabelled=str(unlabelled), **how)


def unlabelled(table: Table) -> list[tuple[str, ...]]:
    rows = table.split("unlabelled")
    assert task_of(table.task, table.settings).find_unlabelled(rows.labels).all()
    assert len(rows) == len(rows.numbers)
    return [row for part in rows.contents() for row in part]


def test_lines_of_text(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "more.txt"
    path.write_text("one text\n\n  \nanother, text\r\n\ufeffthird", encoding="utf-8")
    table = opened(write, LABELLED, path)
    assert [text for (text,) in unlabelled(table)] == ["one text", "another, text", "\ufeffthird"]
    assert f"unlabelled: 3 rows of {path}" in table.notes
    assert {s: len(r) for s, r in table.splits.items()}["train"] < 12, "validation and test are cut from labelled rows"


@pytest.mark.parametrize("suffix", ["jsonl", "csv", "tsv", "parquet", "arrow"])
def test_every_table(suffix: str, write: Write, tmp_path: Path) -> None:
    path = tmp_path / f"more.{suffix}"
    rows = pa.table({"review": ["one", "two"], "id": [1, 2]})
    if suffix == "parquet":
        pq.write_table(rows, path)
    elif suffix == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, rows.schema) as writer:
            writer.write_table(rows)
    elif suffix == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
    else:
        comma = {"csv": ",", "tsv": "\t"}[suffix]
        path.write_text(f"review{comma}id\none{comma}1\ntwo{comma}2\n")
    assert unlabelled(opened(write, LABELLED, path)) == [("one",), ("two",)]


def test_labels_and_empty_texts_are_counted(write: Write) -> None:
    rows = [{"text": "one", "label": "good"}, {"text": " ", "label": "x"}, {"text": None, "label": None}]
    path = write("more.jsonl", [*rows, {"text": "NaN", "label": "bad"}])
    table = opened(write, LABELLED, path)
    assert unlabelled(table) == [("one",), ("NaN",)]
    assert f"{path}: its labels ('label') are not used; the teacher labels these rows" in table.notes
    assert f"{path}: 2 rows without text (rows 2, 3) left out" in table.notes
    assert table.label_names == ["bad", "good"]


def test_a_folder_gives_its_text_and_never_its_test_rows(write: Write, tmp_path: Path) -> None:
    for name in ("train", "validation", "test"):
        write(f"more/{name}.jsonl", [{"text": f"{name} text"}])
    table = opened(write, LABELLED, tmp_path / "more")
    assert unlabelled(table) == [("train text",)]
    assert any(note.endswith("only train.jsonl is read") for note in table.notes)
    write("shards/a.jsonl", [{"text": "a"}])
    (tmp_path / "shards/b.txt").write_text("b\nc\n")
    assert unlabelled(opened(write, LABELLED, tmp_path / "shards")) == [("a",), ("b",), ("c",)]


def test_the_split_of_the_data_and_the_text_are_joined(write: Write, tmp_path: Path) -> None:
    write("data/unlabelled.jsonl", [{"text": "of the split"}])
    path = write("more.jsonl", [{"text": "of the file"}])
    table = opened(write, LABELLED, path, labelled_rows=2)
    assert unlabelled(table)[:2] == [("of the split",), ("of the file",)]
    assert len(table.split("train")) == 2
    alone = open_table(str(tmp_path / "data"))
    assert table.measured_fingerprint == alone.fingerprint == alone.measured_fingerprint
    assert table.fingerprint != alone.fingerprint


def test_pairs(write: Write, tmp_path: Path) -> None:
    path = write("more.jsonl", [{"sentence1": "x", "sentence2": "y"}, {"sentence1": "x", "sentence2": ""}])
    assert unlabelled(opened(write, PAIRS, path)) == [("x", "y")]
    text = tmp_path / "more.txt"
    text.write_text("x\n")
    with pytest.raises(UserError, match="each row needs two texts"):
        opened(write, PAIRS, text)


def test_words_and_plain_text_of_a_tagging_task(write: Write, tmp_path: Path) -> None:
    text = tmp_path / "more.txt"
    text.write_text("Anna's dog, Rex.\n")
    assert unlabelled(opened(write, TAGS, text)) == [("Anna's\x1edog\x1e,\x1eRex\x1e.",)]
    path = write("more.jsonl", [{"words": ["it", "rains"]}, {"words": []}])
    table = opened(write, TAGS, path)
    assert unlabelled(table) == [("it\x1erains",)]


def test_questions_without_answers(write: Write) -> None:
    path = write("more.jsonl", [{"question": "who?", "context": "tom."}])
    assert unlabelled(opened(write, QUESTIONS, path)) == [("who?", "tom.")]


def test_a_limit_holds_for_the_text_too(write: Write, tmp_path: Path) -> None:
    path = tmp_path / "more.txt"
    path.write_text("".join(f"text {i}\n" for i in range(50)))
    table = opened(write, LABELLED, path, limit=5)
    assert len(unlabelled(table)) == 5
    assert table.measured_fingerprint == open_table(str(tmp_path / "data"), limit=5).fingerprint


@pytest.mark.parametrize(
    ("content", "message"), [("\n \n", "the file has no text"), ("", "the file is empty")], ids=["blank", "empty"]
)
def test_a_file_without_text(content: str, message: str, write: Write, tmp_path: Path) -> None:
    path = tmp_path / "more.txt"
    path.write_text(content)
    with pytest.raises(UserError, match=message):
        opened(write, LABELLED, path)


def test_a_name_that_is_not_there(write: Write, tmp_path: Path) -> None:
    (tmp_path / "more.txt").write_text("x\n")
    with pytest.raises(UserError, match="no such file or folder") as error:
        opened(write, LABELLED, tmp_path / "mor.txt")
    assert "more.txt" in str(error.value.do)


def test_the_same_text_is_found_whatever_its_case_and_spaces(write: Write) -> None:
    path = write("more.jsonl", [{"text": "Row  0"}, {"text": "row zero"}])
    table = opened(write, LABELLED, path)
    everything = [table.split(name) for name in ("train", "validation", "test")]
    assert find_overlap(table.split("unlabelled"), everything).tolist() == [True, False]
