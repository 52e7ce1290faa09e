"""Which of the rows that only a teacher labels are trained on: confidence, classes, disagreement; what fits a task."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Rows
from compress.data.tasks import task_of
from compress.errors import UserError
from compress.stages.distill import row_filter
from compress.stages.distill.row_filter import (
    AGREEING,
    BALANCE,
    HIGH,
    LOW,
    Answers,
    check_filter,
    describe_filter,
    find_answers,
    make_empty_error,
    select_rows,
)
from compress.stages.distill.row_filter_spec import RowFilterSpec

RNG = np.random.default_rng(0)
ROWS = 1000
ANSWERS = Answers(RNG.random(ROWS), (RNG.random(ROWS) < 0.2).astype(np.int64), 2 * RNG.random(ROWS))


def chosen(most: int | None = None, answers: Answers = ANSWERS, **keys: object) -> tuple[np.ndarray, dict[str, int]]:
    places, removed = select_rows(RowFilterSpec(**keys), answers, 2, most, 0)  # pyright: ignore[reportArgumentType]
    assert (np.diff(places) > 0).all(), "in the order of the rows, each once"
    again, _ = select_rows(RowFilterSpec(**keys), answers, 2, most, 0)  # pyright: ignore[reportArgumentType]
    assert (again == places).all()
    return places, removed


def test_confidence() -> None:
    places, removed = chosen(min_confidence=0.3, max_confidence=0.9)
    sure = ANSWERS.confidence
    assert (places == np.flatnonzero((sure >= 0.3) & (sure <= 0.9))).all()
    assert removed == {LOW: int((sure < 0.3).sum()), HIGH: int((sure > 0.9).sum())}


def test_at_most_so_many_of_a_class() -> None:
    places, removed = chosen(balance=100)
    assert np.bincount(ANSWERS.predicted[places]).tolist() == [100, 100]
    assert removed == {BALANCE: ROWS - 200}
    assert places.max() > 500, "drawn from all over the rows"
    few = int((ANSWERS.predicted == 1).sum())
    places, _ = chosen(balance="even")
    assert np.bincount(ANSWERS.predicted[places]).tolist() == [500, few]
    places, _ = chosen(balance="even", most=60)
    assert np.bincount(ANSWERS.predicted[places]).tolist() == [30, 30]


def test_rows_on_which_models_disagree_come_first() -> None:
    apart = ANSWERS.disagreement
    places, removed = chosen(disagreement="student")
    assert apart[places].min() >= np.median(apart)
    assert (len(places), removed) == (500, {AGREEING: 500})
    assert len(chosen(disagreement="student", keep=0.1)[0]) == 100
    assert len(chosen(most=900, disagreement="student", keep=0.1)[0]) == 100, "a number of rows does not undo it"
    places, _ = chosen(disagreement="student", most=7)
    assert set(places) == set(np.argsort(-apart)[:7])
    places, _ = chosen(disagreement="student", balance=5)
    best = [np.flatnonzero(ANSWERS.predicted == k)[np.argsort(-apart[ANSWERS.predicted == k])[:5]] for k in (0, 1)]
    assert set(places) <= set(np.concatenate(best))


def test_a_number_of_rows_holds_after_the_filter() -> None:
    places, removed = chosen(min_confidence=0.5, most=20)
    assert len(places) == 20
    assert (ANSWERS.confidence[places] >= 0.5).all()
    assert removed == {LOW: int((ANSWERS.confidence < 0.5).sum())}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "nothing is filtered"),
        ({"min_confidence": 0.9, "max_confidence": 0.8}, "min_confidence 0.9 is not below max_confidence 0.8"),
        ({"keep": 0.5, "balance": 3}, "keep has no effect without disagreement"),
        ({"balance": 0}, "greater than 0"),
    ],
)
def test_filters_that_cannot_be(keys: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        RowFilterSpec(**keys)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("kind", "keys", "bad"),
    [
        ("question-answering", {"min_confidence": 0.5}, "min_confidence"),
        ("question-answering", {"disagreement": "student"}, "disagreement"),
        ("regression", {"max_confidence": 0.5}, "max_confidence"),
        ("regression", {"balance": 5}, "balance"),
        ("token-classification", {"balance": 5}, "balance"),
        ("multi-label", {"balance": "even"}, "balance"),
        ("regression", {"disagreement": "student"}, None),
        ("token-classification", {"min_confidence": 0.5}, None),
        ("pair-classification", {"balance": 5}, None),
        ("multi-label", {"min_confidence": 0.5}, None),
    ],
)
def test_what_makes_no_sense_for_a_task_is_named(kind: str, keys: dict[str, object], bad: str | None) -> None:
    spec = RowFilterSpec(**keys)  # pyright: ignore[reportArgumentType]
    if bad is None:
        return check_filter(spec, task_of(kind))
    with pytest.raises(UserError, match=f"{bad} is not supported for {kind}") as error:
        check_filter(spec, task_of(kind))
    assert error.value.where == f"row_filter.{bad}"


def test_what_is_said() -> None:
    assert describe_filter(8, 20, {LOW: 10, HIGH: 0, AGREEING: 2}) == (
        "row filter: 8 of 20 rows that only the teacher labels are trained on; left out: 10 where the teacher's "
        "confidence is too low, 2 where the models agree"
    )
    assert (
        "20 rows where the teacher's confidence is too low (it is 0.500 to 0.600, half of them above 0.550)"
        in make_empty_error({LOW: 20}, np.array([0.5, 0.55, 0.6])).line()
    )


def context(said: list[int] | None = None) -> Any:
    progress = SimpleNamespace(update=(said if said is not None else []).append)
    services = SimpleNamespace(progress=lambda *_: nullcontext(progress), stop=lambda: None)
    return SimpleNamespace(precision="fp32", device="cpu", folder=Path("0-distill"), workshop=services)


def taught_rows(logits: np.ndarray, words: int = 0) -> Rows:
    """Rows of which columns say `logits`: one each, or as many as they have words."""
    count = len(logits) // max(1, words)
    offsets = np.arange(0, len(logits) + 1, max(1, words), dtype=np.int64)
    texts = pa.chunked_array([pa.array([f"row {i}" for i in range(count)], pa.large_string())])
    taught = Ragged(logits, offsets) if words else logits
    return Rows({"text": texts}, np.full(count, -100), np.arange(1, count + 1), taught=taught)


def test_what_columns_say_of_each_kind_of_task(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_filter, "AT_ONCE", 2)  # several parts
    logits = np.log(np.array([[0.9, 0.1], [0.3, 0.7], [0.5, 0.5], [0.2, 0.8], [0.6, 0.4], [0.99, 0.01]], np.float32))
    found = find_answers(task_of("classification"), taught_rows(logits), 8, context(seen := []), None)
    assert found.confidence == pytest.approx([0.9, 0.7, 0.5, 0.8, 0.6, 0.99])
    assert found.predicted.tolist() == [0, 1, 0, 1, 0, 0]
    assert seen == [2, 4, 6]
    found = find_answers(task_of("token-classification"), taught_rows(logits, words=2), 8, context(), None)
    assert found.confidence == pytest.approx([0.7, 0.5, 0.6]), "the least certain word"
    assert found.predicted.tolist() == [-1, -1, -1]
    several = np.array([[3.0, -3.0], [0.0, 5.0]], np.float32)
    found = find_answers(task_of("multi-label"), taught_rows(several), 8, context(), None)
    assert found.confidence == pytest.approx([1 / (1 + np.exp(-3)), 0.5])


def test_other_answers_come_before_other_probabilities() -> None:
    ours = np.array([[4.0, 0.0], [0.1, 0.0], [4.0, 0.0]])
    theirs = np.array([[0.1, 0.0], [0.0, 0.1], [4.0, 0.0]])
    apart = row_filter._compare(ours, theirs, "single_label")
    assert apart[1] > 1 > apart[0] > apart[2] == 0
    assert row_filter._compare(np.array([[1.0]]), np.array([[4.0]]), "regression") == pytest.approx([0.75])
    assert row_filter._compare(np.array([[1.0, -1.0]]), np.array([[1.0, 1.0]]), "multi_label")[0] > 1
