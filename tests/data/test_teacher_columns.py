"""Columns in which a teacher labelled rows → logits: every form, several columns, what is wrong with them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from compress.data.batches.ragged import Ragged
from compress.data.reading.sources import open_table
from compress.data.reading.teacher_columns import TeacherColumns
from compress.data.tables.table import Table
from compress.errors import UserError

Write = Callable[..., Path]
NAMES = ("bad", "fine", "good")
TEXTS = [{"text": f"row {i}", "label": NAMES[i % 3]} for i in range(30)]


def opened(write: Write, cells: list[dict[str, Any]], *columns: str, rows: Any = None, **how: Any) -> Table:
    """A table whose unlabelled rows have these columns."""
    settings = {name: how.pop(name) for name in ("form", "noise") if name in how}
    rows = rows or TEXTS
    write("data/train.jsonl", rows[:-6])
    write("data/validation.jsonl", rows[-6:-3])
    write("data/test.jsonl", rows[-3:])
    texts = {k: v for k, v in rows[0].items() if k in ("text", "tokens")}
    more = write("more.jsonl", [{**texts, **cell} for cell in cells])
    teacher = TeacherColumns(columns, **settings)
    return open_table(str(more.parent / "data"), unlabelled=str(more), teacher=teacher, **how)


def shares(table: Table) -> list[list[float]]:
    taught = table.split("unlabelled").taught
    values = taught.values if isinstance(taught, Ragged) else taught
    assert values is not None
    assert values.dtype == np.float32
    return torch.tensor(np.array(values)).softmax(-1).tolist()


@pytest.mark.parametrize(
    "cell",
    [
        [0.1, 0.2, 0.7],
        {"good": 0.7, "bad": 0.1, "fine": 0.2},
        {"good": 0.7, "bad": 0.1, "fine": 0.2000001},
        [{"label": "good", "score": 0.7}, {"label": "fine", "score": 0.2}, {"label": "bad", "score": 0.1}],
        "[0.1, 0.2, 0.7]",
        json.dumps({"bad": 0.1, "fine": 0.2, "good": 0.7}),
        [math.log(0.1) + 3, math.log(0.2) + 3, math.log(0.7) + 3],
    ],
    ids=["list", "names", "rounded", "pipeline", "json list", "json names", "logits"],
)
def test_one_column_with_a_value_for_each_class(cell: Any, write: Write) -> None:
    table = opened(write, [{"p": cell}, {"p": cell}], "p")
    assert shares(table) == [pytest.approx([0.1, 0.2, 0.7], abs=1e-5)] * 2
    assert (table.split("unlabelled").labels == -100).all()


def test_the_most_probable_classes_alone(write: Write) -> None:
    assert shares(opened(write, [{"p": {"good": 0.99}}], "p"))[0] == pytest.approx([0, 0, 1], abs=1e-5)


def test_a_column_for_each_class_whatever_their_order(write: Write) -> None:
    row = {"p_good": 0.7, "p_bad": 0.1, "p_fine": 0.2}
    table = opened(write, [row, {**row, "p_good": 0.1, "p_bad": 0.7}], *row)
    assert shares(table) == [pytest.approx([0.1, 0.2, 0.7]), pytest.approx([0.7, 0.2, 0.1])]
    by_order = opened(write, [{"a": 0.1, "b": 0.2, "c": 0.7}], "a", "b", "c")
    assert shares(by_order)[0] == pytest.approx([0.1, 0.2, 0.7])


def test_text_files_hold_numbers_as_text(tmp_path: Path, write: Write) -> None:
    write("data/train.jsonl", TEXTS)
    more = tmp_path / "more.csv"
    more.write_text("text,p_bad,p_fine,p_good,llm\none,0.1,0.2,0.7,fine\ntwo,,,,\n")
    table = open_table(
        str(tmp_path / "data"), unlabelled=str(more), teacher=TeacherColumns(("p_bad", "p_fine", "p_good"))
    )
    assert shares(table) == [pytest.approx([0.1, 0.2, 0.7])]
    assert "unlabelled: 1 row without teacher values and labels left out" in table.notes
    named = open_table(str(tmp_path / "data"), unlabelled=str(more), teacher=TeacherColumns(("llm",)))
    assert shares(named)[0] == pytest.approx([0, 1, 0], abs=1e-5)


def test_labels_with_a_stated_noise_rate(write: Write) -> None:
    table = opened(write, [{"llm": "good"}, {"llm": "bad"}, {"llm": None}], "llm", noise=0.2)
    assert shares(table) == [pytest.approx([0.1, 0.1, 0.8]), pytest.approx([0.8, 0.1, 0.1])]
    assert any("labels in column llm (assumed wrong: 20.0%)" in note for note in table.notes)
    ids = opened(write, [{"llm": 2}, {"llm": 0}], "llm")
    assert np.argmax(shares(ids), 1).tolist() == [2, 0]


def test_several_annotators_give_soft_labels(write: Write) -> None:
    table = opened(write, [{"a": "good", "b": "good", "c": "bad"}, {"a": "fine", "b": None, "c": None}], "a", "b", "c")
    assert shares(table) == [pytest.approx([1 / 3, 0, 2 / 3], abs=1e-4), pytest.approx([0, 1, 0], abs=1e-4)]
    mixed = opened(write, [{"a": [0.2, 0.2, 0.6], "b": [0.6, 0.2, 0.2]}], "a", "b")
    assert shares(mixed)[0] == pytest.approx([0.4, 0.2, 0.4])
    ids = opened(write, [{"a": 0, "b": 2, "c": 2}], "a", "b", "c")
    assert shares(ids)[0] == pytest.approx([1 / 3, 0, 2 / 3], abs=1e-4)


def test_labelled_rows_without_teacher_values_teach_their_label(write: Write) -> None:
    rows = [{**row, "p": [0.6, 0.2, 0.2] if i == 0 else None} for i, row in enumerate(TEXTS)]
    table = opened(write, [{"p": [0.1, 0.2, 0.7]}], "p", rows=rows)
    taught = table.split("train").taught
    assert isinstance(taught, np.ndarray)
    assert (taught.argmax(1) == table.split("train").labels).all()
    assert torch.tensor(taught[0]).softmax(-1).tolist() == pytest.approx([0.6, 0.2, 0.2])
    assert torch.tensor(taught[1]).softmax(-1).tolist() == pytest.approx([0, 1, 0], abs=1e-4)
    assert "train: 23 rows without teacher values; their own labels are used" in table.notes
    assert "teacher: right on 100.0% of 1 labelled training rows" in table.notes
    assert table.split("test").taught is None


def test_what_it_says_counts_as_data(write: Write) -> None:
    one, other = (opened(write, [{"p": p}], "p") for p in ([0.1, 0.2, 0.7], [0.2, 0.1, 0.7]))
    assert one.fingerprint != other.fingerprint
    assert one.measured_fingerprint == other.measured_fingerprint


def test_one_number_of_two_classes_is_of_the_second(write: Write) -> None:
    rows = [{"text": f"row {i}", "label": ("no", "yes")[i % 2]} for i in range(30)]
    assert shares(opened(write, [{"p": 0.9}, {"p": 0.25}], "p", rows=rows)) == [
        pytest.approx([0.1, 0.9]), pytest.approx([0.75, 0.25]),
    ]  # fmt: skip
    logits = opened(write, [{"p": 2.0}, {"p": -1.0}], "p", rows=rows)
    assert shares(logits)[0][1] == pytest.approx(1 / (1 + math.exp(-2)))


def test_scores(write: Write) -> None:
    rows = [{"text": f"row {i}", "label": i / 7} for i in range(30)]
    table = opened(write, [{"s": 1.5, "t": 2.5}, {"s": -3, "t": None}], "s", "t", rows=rows, task="regression")
    taught = table.split("unlabelled").taught
    assert isinstance(taught, np.ndarray)
    assert taught.tolist() == [[2.0], [-3.0]]


def test_several_labels(write: Write) -> None:
    rows = [{"text": f"row {i}", "label": [["a"], ["b"], ["a", "b"]][i % 3]} for i in range(30)]
    table = opened(write, [{"p": [0.9, 0.2]}], "p", rows=rows)
    taught = table.split("unlabelled").taught
    assert torch.sigmoid(torch.tensor(np.array(taught))).tolist() == [pytest.approx([0.9, 0.2])]
    named = opened(write, [{"p": ["a", "b"]}, {"p": ["b"]}], "p", rows=rows, noise=0.1)
    assert torch.sigmoid(torch.tensor(np.array(named.split("unlabelled").taught))).tolist() == [
        pytest.approx([0.9, 0.9]), pytest.approx([0.1, 0.9]),
    ]  # fmt: skip


TAGGED = [{"tokens": ["she", "saw", "anna"], "ner_tags": ["O", "O", "B-PER"]} for _ in range(30)]


def test_tag_probabilities(write: Write) -> None:
    p = [[0.1, 0.9], [0.2, 0.8], [0.7, 0.3]]
    table = opened(write, [{"p": p}], "p", rows=TAGGED)
    assert table.label_names == ["B-PER", "O"]
    assert shares(table) == [pytest.approx(row) for row in p]
    named = opened(write, [{"p": ["O", "B-PER", "O"]}], "p", rows=TAGGED, noise=0.1)
    assert shares(named)[1] == pytest.approx([0.9, 0.1])
    with pytest.raises(UserError, match="1 row with another number of teacher values than words"):
        opened(write, [{"p": p[:2]}], "p", rows=TAGGED)


@pytest.mark.parametrize(
    ("cells", "what", "why"),
    [
        ([[0.1, 0.2, 0.7], [0.5, 0.2, 0.2]], "1 row whose probabilities do not add up to 1 (row 2)", "adds up to 0.9"),
        ([[0.1, 0.2, 0.7], [0.5, 0.5]], "1 row with another number of classes (row 2)", "2 values, 3 classes"),
        ([{"good": 0.7, "awful": 0.3}], "1 row with an unknown class (row 1)", "'awful'"),
        ([[0.1, 0.2, 0.7], [0.1, None, 0.9]], "1 row with NaN or infinity (row 2)", "nan"),
        ([[0.1, 0.2, 0.7], [[0.1], 0.2, 0.7]], "1 row with a value that is not a number (row 2)", "first is"),
        (["good", "bda"], "1 row with an unknown label (row 2)", "'bda'"),
    ],
)
def test_what_is_wrong_is_counted(cells: list[Any], what: str, why: str, write: Write) -> None:
    with pytest.raises(UserError) as error:
        opened(write, [{"p": cell} for cell in cells], "p")
    assert error.value.what == what
    assert why in str(error.value.why)
    assert "teacher column" in str(error.value.where)
    assert error.value.do


def test_logits_that_are_called_probabilities(write: Write) -> None:
    with pytest.raises(UserError, match="outside 0 to 1") as error:
        opened(write, [{"p": [0.1, -2.0, 5.0]}], "p", form="probabilities")
    assert "--teacher-values logits" in str(error.value.do)
    assert shares(opened(write, [{"p": [0.0, 0.0, 0.0]}], "p", form="logits"))[0] == pytest.approx([1 / 3] * 3)


@pytest.mark.parametrize(
    ("columns", "how", "message"),
    [
        (("q",), {}, "teacher column 'q' not found"),
        (("p", "q"), {}, "teacher column 'q' not found"),
        (("p",), {"noise": 0.1}, "only applies to labels"),
        (("p",), {"form": "scores"}, "cannot hold scores"),
    ],
)
def test_columns_that_cannot_be_meant(columns: tuple[str, ...], how: Any, message: str, write: Write) -> None:
    with pytest.raises(UserError, match=message):
        opened(write, [{"p": [0.1, 0.2, 0.7]}], *columns, **how)


# --- vectors ----------------------------------------------------------------------------------------------------------


def embedded(write: Write, cells: list[dict[str, Any]], *columns: str, **how: Any) -> Table:
    """Texts with vectors, enough of them for splits."""
    rows = [{"text": f"row {i}", **(cells[i] if i < len(cells) else cells[-1])} for i in range(30)]
    file = write("texts.jsonl", rows)
    return open_table(str(file), task="embedding", teacher=TeacherColumns(columns, **how), bad_rows="refuse")


def test_vectors_of_all_splits_are_read(write: Write) -> None:
    table = embedded(write, [{"v": [i + 1, 0.5]} for i in range(30)], "v")
    for rows in table.splits.values():
        assert isinstance(rows.taught, np.ndarray)
        wanted = [[int(text.split()[1]) + 1, 0.5] for text in rows.texts]
        assert rows.taught.tolist() == wanted
    assert any("vectors of 2 dimensions in column v" in note for note in table.notes)


def test_vectors_of_one_column_per_dimension(write: Write) -> None:
    table = embedded(write, [{"v0": 1.0, "v1": -2, "v2": 3}], "v0", "v1", "v2")
    taught = table.split("train").taught
    assert isinstance(taught, np.ndarray)
    assert taught[0].tolist() == [1, -2, 3]
    many = {f"v{i}": i + 1.0 for i in range(12)}
    assert any("in columns v0 … v11" in note for note in embedded(write, [many], *many).notes)


def test_texts_without_a_vector_are_left_out(write: Write) -> None:
    table = embedded(write, [{"v": None}, {"v": [1.0, 2.0]}], "v")
    assert sum(map(len, table.splits.values())) == 29
    assert any("1 row without teacher values and labels left out" in note for note in table.notes)


@pytest.mark.parametrize(
    ("cells", "told"),
    [
        ([{"v": [1.0, 2.0]}] * 20 + [{"v": [1.0]}], "another number of dimensions"),
        ([{"v": [1.0, 2.0]}] * 20 + [{"v": [1.0, None]}], "a value that is not a finite number"),
        ([{"v": [1.0, 2.0]}] * 20 + [{"v": [1.0, "x"]}], "a value that is not a finite number"),
        ([{"v": [1.0, 2.0]}] * 20 + [{"v": [0.0, 0.0]}], "a vector of zeros"),
        ([{"v": "positive"}], "the teacher columns hold no vectors"),
        ([{"v": 0.5}], "the teacher columns hold no vectors"),
        ([{"w": [1.0]}], "teacher column 'v' not found"),
    ],
)
def test_what_is_no_vector_is_told_by_row(cells: list[dict[str, Any]], told: str, write: Write) -> None:
    with pytest.raises(UserError) as error:
        embedded(write, cells, "v")
    assert told in str(error.value)
    if len(cells) > 1:
        assert "row" in str(error.value)


def test_vectors_have_no_other_form_and_belong_to_single_texts(write: Write) -> None:
    with pytest.raises(UserError, match="hold vectors, not probabilities"):
        embedded(write, [{"v": [1.0]}], "v", form="probabilities")
    file = write("pairs.jsonl", [{"sentence1": f"a {i}", "sentence2": f"b {i}", "v": [1.0]} for i in range(30)])
    with pytest.raises(UserError, match="teacher columns need single texts"):
        open_table(str(file), task="embedding", teacher=TeacherColumns(("v",)))


def test_a_split_without_vectors_is_named(write: Write) -> None:
    rows = [{"text": f"row {i}", "v": [1.0, 2.0]} for i in range(20)]
    folder = write("given/train.jsonl", rows).parent
    write("given/test.jsonl", [{"text": "another"}])
    with pytest.raises(UserError, match="no column 'v' in the test split"):
        open_table(str(folder), task="embedding", teacher=TeacherColumns(("v",)))
