"""Rows that only a teacher labels: read in the columns of the labelled data, counted, and joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.ragged import Ragged
from compress.data.reading.unlabelled import count_words, join_unlabelled, read_unlabelled
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.tasks import task_of
from compress.errors import UserError

Write = Callable[..., Path]
CLASSES, TAGS = task_of("classification"), task_of("token-classification")


def text_rows(texts: Sequence[str], labels: Sequence[int] | None = None, taught: Any = None) -> Rows:
    numbers = np.arange(1, len(texts) + 1)
    made = np.full(len(texts), UNLABELLED) if labels is None else np.array(labels)
    return Rows({"text": pa.chunked_array([pa.array(texts, pa.string())])}, made, numbers, taught=taught)


def read(path: Path, **more: Any) -> tuple[Rows, list[str]]:
    notes: list[str] = []
    roles = more.pop("roles", {"text": "text", "label": "label"})
    return read_unlabelled(str(path), more.pop("task", CLASSES), roles, ["no", "yes"], notes, **more), notes


def error_of(path: Path | str, **more: Any) -> str:
    with pytest.raises(UserError) as error:
        read(Path(path), **more)
    return str(error.value)


def test_what_has_no_text_is_counted_by_its_row(write: Write) -> None:
    texts = ["a", "", " \t", "b", None, "c", "\u3000"]
    path = write("more.jsonl", [{"text": text} for text in texts])
    rows, notes = read(path)
    assert rows.texts == ["a", "b", "c"]
    assert rows.numbers.tolist() == [1, 2, 3]
    assert CLASSES.find_unlabelled(rows.labels).all()
    assert notes == [f"{path}: 4 rows without text (rows 2, 3, 5 …) left out"]
    assert error_of(write("none.jsonl", [{"text": ""}])) == f"{path.parent}/none.jsonl: no row has text"


def test_rows_are_counted_through_the_files_of_a_folder(write: Write, tmp_path: Path) -> None:
    write("more/a.jsonl", [{"text": "a"}, {"text": ""}])
    write("more/b.jsonl", [{"text": ""}, {"text": "b"}])
    rows, notes = read(tmp_path / "more")
    assert rows.texts == ["a", "b"]
    assert notes == [f"{tmp_path}/more: 2 rows without text (rows 2, 3) left out"]


def test_labels_are_not_read(write: Write) -> None:
    path = write("more.jsonl", [{"text": "a", "label": "never seen"}])
    rows, notes = read(path)
    assert rows.texts == ["a"]
    assert notes == [f"{path}: its labels ('label') are not used; the teacher labels these rows"]


def test_only_the_split_for_training_is_read(write: Write, tmp_path: Path) -> None:
    for name in ("train", "test"):
        write(f"more/{name}.jsonl", [{"text": name}])
    rows, notes = read(tmp_path / "more")
    assert rows.texts == ["train"]
    assert notes == [f"{tmp_path}/more: only train.jsonl is read"]
    write("more/unlabelled.jsonl", [{"text": "unlabelled"}])
    assert read(tmp_path / "more")[0].texts == ["unlabelled"]


def test_what_cannot_be_read(write: Write, tmp_path: Path) -> None:
    assert "no such file or folder" in error_of(tmp_path / "missing.jsonl")
    (tmp_path / "empty").mkdir()
    assert error_of(tmp_path / "empty").startswith(f"{tmp_path}/empty: the folder has no file with text; known types: ")
    lines = write("more.txt", "one\ntwo\n")
    assert error_of(lines, roles={"text": "premise", "text_pair": "hypothesis"}) == (
        f"{lines}: each row needs two texts: found single texts; write both as columns of a table"
    )


def test_plain_text_is_cut_into_words(write: Write) -> None:
    rows, _ = read(write("more.txt", "anna ran\nup\n"), task=TAGS, roles={"words": "tokens"})
    assert rows.columns["words"].to_pylist() == [["anna", "ran"], ["up"]]
    assert isinstance(rows.labels, Ragged)
    assert rows.labels.lengths.tolist() == [2, 1]


def test_words_are_counted_over_chunks() -> None:
    words = pa.chunked_array([pa.array([["a", "b"], None], pa.list_(pa.string())), pa.array([["c"]])])
    assert count_words({"text": pa.chunked_array([["a"]])}) is None
    found = count_words({"words": words})
    assert found is not None
    assert found.tolist() == [2, 0, 1]
    empty = count_words({"words": pa.chunked_array([], pa.list_(pa.string()))})
    assert empty is not None
    assert empty.tolist() == []


def test_joined_rows_lose_their_labels() -> None:
    first, second = text_rows(["a", "b"], [1, UNLABELLED]), text_rows(["c"])
    joined = join_unlabelled(CLASSES, [first, second], ["no", "yes"])
    assert joined.texts == ["a", "b", "c"]
    assert joined.numbers.tolist() == [1, 2, 1]
    assert CLASSES.find_unlabelled(joined.labels).all()
    assert joined.taught is None
    assert join_unlabelled(CLASSES, [second], ["no", "yes"]) is second, "nothing to change"
    assert CLASSES.find_unlabelled(join_unlabelled(CLASSES, [first], ["no", "yes"]).labels).all()


def test_what_a_teacher_said_is_kept_where_it_said_something() -> None:
    said = np.array([[0.5, -0.5]], np.float32)
    joined = join_unlabelled(CLASSES, [text_rows(["a"]), text_rows(["b"], taught=said)], ["no", "yes"])
    assert isinstance(joined.taught, np.ndarray)
    np.testing.assert_array_equal(joined.taught, [[np.nan, np.nan], [0.5, -0.5]])


def test_what_a_teacher_said_of_words() -> None:
    def tagged(words: list[list[str]], taught: Any = None) -> Rows:
        columns = {"words": pa.chunked_array([pa.array(words)])}
        labels = TAGS.make_missing_labels(columns, len(words), [])
        return Rows(columns, labels, np.arange(1, len(words) + 1), taught=taught)

    said = Ragged(np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 3]))
    joined = join_unlabelled(TAGS, [tagged([["a"], ["b", "c"]], said), tagged([["d"]])], ["N", "V"])
    assert isinstance(joined.taught, Ragged)
    assert joined.taught.lengths.tolist() == [1, 2, 1]
    np.testing.assert_array_equal(joined.taught.row(1), [[2, 3], [4, 5]])
    assert np.isnan(joined.taught.row(2)).all()
