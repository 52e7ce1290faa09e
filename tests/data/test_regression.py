"""Regression: scores, rows without one, and models whose output is no number."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.examples import Examples
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Frame
from compress.data.tables.table import Rows
from compress.data.tasks.regression import Answer, Task
from compress.errors import UserError

TASK = Task()
NONE = cast(Examples, None)


def rows(scores: list[float]) -> Rows:
    texts = pa.chunked_array([[f"text {i}" for i in range(len(scores))]])
    return Rows({"text": texts}, np.array(scores, np.float32), np.arange(1, len(scores) + 1))


def outputs(*values: float) -> np.ndarray:
    return np.array(values, np.float32)[:, None]


def test_the_first_guess_leaves_out_rows_without_a_score() -> None:
    guess = TASK.first_guess(np.array([1.0, np.nan, 4.0], np.float32))
    assert guess is not None
    assert guess.tolist() == [2.5]


@pytest.mark.parametrize("labels", [[], [np.nan, np.nan]])
def test_without_any_score_there_is_no_guess(labels: list[float]) -> None:
    """Not NaN, which would be the bias of a new head and of everything that it answers."""
    assert TASK.first_guess(np.array(labels, np.float32)) is None


@pytest.mark.parametrize(("gold", "said", "why"), [([3.0], [1.0], "two rows"), ([1.0, 2.0], [5.0, 5.0], "all predict")])
def test_where_there_is_no_correlation_the_reason_is_given(gold: list[float], said: list[float], why: str) -> None:
    scored = TASK.score(outputs(*said), ["score"], NONE, rows(gold))
    assert not scored.metrics
    assert not scored.chance
    assert set(scored.undefined) == set(TASK.metrics)
    assert all(why in reason for reason in scored.undefined.values())


def test_a_single_row_can_still_be_compared() -> None:
    found = TASK.compare(outputs(1.0), outputs(3.0), ["score"], NONE, rows([0.0]))
    assert not found.figures
    assert found.values == {"mean_squared_difference": 4.0}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_output_that_is_no_number_is_not_scored(bad: float) -> None:
    with pytest.raises(UserError, match=r"row 2: the model's output contains NaN or infinity"):
        TASK.score(outputs(0.0, bad, 1.0), ["score"], NONE, rows([1.0, 2.0, 3.0]))


@pytest.mark.parametrize("act", ["decode", "score"])
def test_a_head_with_two_outputs_is_no_regression(act: str) -> None:
    logits = np.zeros((2, 2), np.float32)
    with pytest.raises(UserError, match="do not match its labels"):
        TASK.decode(logits, ["score"], NONE, ["a", "b"]) if act == "decode" else TASK.score(
            logits, ["score"], NONE, rows([1.0, 2.0])
        )


@pytest.mark.parametrize(
    ("columns", "asked", "claim"),
    [
        ({"text": ["a"], "label": [0.5]}, {}, 3),
        ({"text": ["a"], "label": [1]}, {}, 0),
        ({"text": ["a"], "similarity": [1]}, {}, 3),
        ({"text": ["a"], "label": [1], "score": [0.5]}, {}, 0),
        ({"text": ["a"], "label": [1], "mark": [0.5]}, {"label": "mark"}, 3),
        ({"text": ["a"]}, {"label": "gone"}, 0),
        ({"text": ["a"]}, {}, 0),
    ],
)
def test_which_tables_are_taken_for_a_regression(
    columns: dict[str, list[Any]], asked: dict[str, str], claim: int
) -> None:
    frame = Frame({name: pa.chunked_array([values]) for name, values in columns.items()}, 1)
    assert TASK.claims(frame, RequestedColumns(**asked)) == claim


def test_a_text_of_many_lines_is_answered_in_one() -> None:
    line = Answer(1.23456).line("two\nlines\t" + "x" * 500)
    assert line.startswith("1.2346\t")
    assert "\n" not in line
    assert line.count("\t") == 1
    assert len(line) < 220
