"""Several labels a row: each applies or not, an empty list is an answer, and a missing one is none."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.examples import Examples
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Frame
from compress.data.tables.table import Rows
from compress.data.tasks.multi_label import Answer, Task
from compress.errors import UserError

TASK = Task()
NONE = cast(Examples, None)
NAMES = ["fast", "good", "cheap"]


def rows(labels: list[list[float]]) -> Rows:
    texts = pa.chunked_array([[f"text {i}" for i in range(len(labels))]])
    return Rows({"text": texts}, np.array(labels, np.float32).reshape(-1, 3), np.arange(1, len(labels) + 1))


def test_an_empty_list_is_an_answer_and_a_missing_one_is_none() -> None:
    labels = np.array([[0, 0, 0], [np.nan] * 3, [1, 0, 0]], np.float32)
    assert TASK.find_unlabelled(labels).tolist() == [False, True, False]
    missing = TASK.make_missing_labels({}, 2, NAMES)
    assert isinstance(missing, np.ndarray)
    assert missing.shape == (2, 3)
    assert TASK.find_unlabelled(missing).all()


def test_the_first_guess_is_finite_for_labels_that_never_or_always_apply() -> None:
    guess = TASK.first_guess(np.array([[1, 0, 1], [1, 0, 0], [np.nan] * 3], np.float32))
    assert guess is not None
    np.testing.assert_allclose(guess, [np.log(3), -np.log(3), 0], rtol=1e-6)
    nothing = TASK.first_guess(np.full((2, 3), np.nan, np.float32))
    assert nothing is not None
    assert nothing.tolist() == [0, 0, 0]


def test_scores_by_hand() -> None:
    logits = np.array([[2, -1, -1], [3, 1, -2]], np.float32)
    scored = TASK.score(logits, NAMES, NONE, rows([[1, 0, 0], [1, 0, 0]]))
    assert scored.value("accuracy") == 0.5
    assert scored.value("f1_micro") == pytest.approx(0.8)  # 2 right, 1 too many


def test_a_row_without_labels_is_right_when_nothing_is_said_of_it() -> None:
    scored = TASK.score(np.full((1, 3), -1, np.float32), NAMES, NONE, rows([[0, 0, 0]]))
    assert scored.value("accuracy") == 1


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_an_output_that_is_no_number_is_not_scored(bad: float) -> None:
    """NaN is not above 0: it would count as an answer."""
    logits = np.zeros((2, 3), np.float32)
    logits[1, 2] = bad
    with pytest.raises(UserError, match=r"row 2: the model's output contains NaN or infinity"):
        TASK.score(logits, NAMES, NONE, rows([[0, 0, 0], [0, 0, 0]]))


def test_answers_are_in_the_models_order() -> None:
    (answer,) = TASK.decode(np.array([[3, -3, 1]], np.float32), NAMES, NONE, ["x"])
    assert answer.as_json()["labels"] == ["fast", "cheap"]
    assert sorted(answer.as_json()["probabilities"]) == sorted(NAMES)
    assert TASK.decode(np.zeros((0, 3), np.float32), NAMES, NONE, []) == []


def test_a_line_of_an_answer() -> None:
    assert Answer((), {"fast": 0.1}).line("a\nb") == "-\t-\ta\\nb"
    assert Answer(("a\tb",), {"a\tb": 0.75}).line("x") == "a\\tb\t0.7500\tx"


def test_models_that_agree_on_every_label_do_so_whatever_their_logits() -> None:
    ours, theirs = np.array([[2, -3, 0.5]], np.float32), np.array([[0.1, -0.1, 9]], np.float32)
    same = TASK.compare(ours, theirs, NAMES, NONE, rows([[1, 0, 0]])).figures
    assert float(same["agreement"](np.ones((1, 1)))[0]) == 1
    assert float(same["kl"](np.ones((1, 1)))[0]) > 0


def test_groups_leave_out_labels_that_no_row_has() -> None:
    found = TASK.groups(rows([[1, 0, 0], [1, 0, 1]]), NAMES)
    assert [(group.name, group.inside.tolist()) for group in found] == [
        ("fast", [True, True]),
        ("cheap", [False, True]),
    ]


@pytest.mark.parametrize(("values", "claim"), [([["a"], []], 3), ([[], []], 3), (["a", "b"], 0), ([1, 2], 0)], ids=str)
def test_lists_are_taken_for_several_labels(values: list[Any], claim: int) -> None:
    frame = Frame({"text": pa.chunked_array([["x", "y"]]), "label": pa.chunked_array([values])}, 2)
    assert TASK.claims(frame, RequestedColumns()) == claim
    assert TASK.claims(frame, RequestedColumns(label="gone")) == 0
