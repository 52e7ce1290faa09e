"""Rows that only the teacher labels: how many are held out to stop by, and which are trained on."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.data.tables.table import Rows
from compress.errors import UserError
from compress.stages.distill import text_rows
from compress.stages.distill.row_filter import LOW, Answers
from compress.stages.distill.spec import Spec
from compress.stages.distill.text_rows import (
    LEAST_HELD_OUT,
    MOST_HELD_OUT,
    TextRows,
    choose_text_rows,
    count_added_rows,
)
from compress.stages.shared.stage import HELD_OUT


def rows(texts: Sequence[str], labelled: bool = False) -> Rows:
    column = pa.chunked_array([pa.array(list(texts), pa.large_string())])
    labels = np.zeros(len(texts), np.int64) if labelled else np.full(len(texts), -100)
    return Rows({"text": column}, labels, np.arange(1, len(texts) + 1))


def numbered(count: int, word: str = "text") -> list[str]:
    return [f"{word} number {i}" for i in range(count)]


def choose(
    unlabelled: Rows | None, *, augmented: Rows | None = None, limit: int | None = None, seed: int = 0,
    train: Rows | None = None, said: list[str] | None = None, **keys: Any,
) -> TextRows:  # fmt: skip
    spec = Spec.model_validate(
        {
            "kind": "distill", "level": "task_specific", "student": {"layers": [0]},
            "objectives": [{"kind": "soft_targets"}], "training": {"steps": 10, "learning_rate": 1e-4}, **keys,
        }
    )  # fmt: skip
    spec = spec.model_copy(update={"use_unlabelled": unlabelled is not None})
    splits = {"train": train or rows(numbered(4, "labelled"), labelled=True)}
    splits |= {} if unlabelled is None else {"unlabelled": unlabelled}
    table: Any = SimpleNamespace(
        splits=splits, split=splits.__getitem__, task="classification", settings={}, label_names=["a", "b"]
    )
    data = SimpleNamespace(unlabelled_rows=limit, allow_overlap=True, max_length=16, adds_text=False)
    context: Any = SimpleNamespace(
        recipe=SimpleNamespace(data=data, seed=seed),
        opened=lambda: table,
        say=[].append if said is None else said.append,
    )
    models: Any = SimpleNamespace(teacher=None)
    found = choose_text_rows(spec, table, context, augmented, models)
    if spec.row_filter is None and found.held_out is None:  # the plan tells their number before the run
        copies = 0 if spec.augmentation is None else spec.augmentation.copies * len(splits["train"])
        assert count_added_rows(spec, context) == copies + (0 if found.unlabelled is None else len(found.unlabelled))
    return found


# --- held-out rows ------------------------------------------------------------------------------------------------


def test_a_tenth_is_held_out_and_not_trained_on() -> None:
    said: list[str] = []
    found = choose(rows(numbered(200)), stop="agreement", said=said)
    assert found.held_out is not None
    assert found.unlabelled is not None
    assert (len(found.held_out), len(found.unlabelled)) == (20, 180)
    assert set(found.held_out.texts).isdisjoint(found.unlabelled.texts)
    assert found.figures == {HELD_OUT: 20}
    assert said == ["20 unlabelled rows held out: training stops by the agreement with the teacher"]
    again, other = (choose(rows(numbered(200)), stop="agreement", seed=seed).held_out for seed in (0, 1))
    assert again is not None
    assert other is not None
    assert again.texts == found.held_out.texts
    assert other.texts != again.texts


def test_no_more_are_held_out_than_a_score_needs() -> None:
    found = choose(rows(numbered(12 * MOST_HELD_OUT)), stop="agreement")
    assert found.held_out is not None
    assert len(found.held_out) == MOST_HELD_OUT


@pytest.mark.parametrize(("count", "found"), [(None, "none"), (1, "1 row"), (10 * LEAST_HELD_OUT - 1, "99 rows")])
def test_too_few_rows_to_hold_any_out(count: int | None, found: str) -> None:
    with pytest.raises(UserError, match=f"stopping by agreement needs text without labels.*found {found}"):
        choose(None if count is None else rows(numbered(count)), stop="agreement")


def test_a_text_that_is_trained_on_too_is_not_held_out() -> None:
    train = rows(numbered(190), labelled=True)
    with pytest.raises(UserError, match=r"all but \d of 20 held-out rows are there again"):
        choose(rows(numbered(200)), stop="agreement", train=train)
    with pytest.raises(UserError, match="all but 0 of 20 held-out rows are there again among the others"):
        choose(rows(["the same text"] * 200), stop="agreement")


def test_without_text_on_request_nothing_is_held_out() -> None:
    found = choose(None, stop="agreement", limit=0)
    assert (found.held_out, found.unlabelled, dict(found.figures)) == (None, None, {})


# --- a filter -----------------------------------------------------------------------------------------------------


@pytest.fixture
def confident(monkeypatch: pytest.MonkeyPatch) -> None:
    """A teacher that is sure of texts with an even number, and of nothing else."""

    def answers(task: Any, part: Rows, *_: Any) -> Answers:
        numbers = np.array([int(text.rpartition(" ")[2]) for text in part.texts])
        return Answers(np.where(numbers % 2, 0.4, 0.9), numbers % 2, np.zeros(len(part)))

    monkeypatch.setattr(text_rows, "find_answers", answers)


@pytest.mark.usefixtures("confident")
def test_rows_and_copies_are_filtered_alike() -> None:
    said: list[str] = []
    found = choose(
        rows(numbered(10)), augmented=rows(numbered(4, "copy")), row_filter={"min_confidence": 0.5}, said=said
    )
    assert found.unlabelled is not None
    assert found.augmented is not None
    assert found.unlabelled.texts == numbered(10)[::2]
    assert found.augmented.texts == numbered(4, "copy")[::2]
    assert found.figures == {LOW: 7}
    assert said[-1].startswith("row filter: 7 of 14 rows")


@pytest.mark.usefixtures("confident")
def test_copies_that_keep_their_labels_are_not_filtered() -> None:
    copies = rows(numbered(4, "copy"), labelled=True)
    keep = {"method": "neighbours", "keep_labels": True}
    found = choose(rows(numbered(10)), augmented=copies, augmentation=keep, row_filter={"min_confidence": 0.5})
    assert found.augmented is copies
    with pytest.raises(UserError, match="there are no rows that only the teacher labels"):
        choose(None, augmented=copies, augmentation=keep, row_filter={"min_confidence": 0.5})


@pytest.mark.usefixtures("confident")
def test_a_filter_that_leaves_nothing_says_how_sure_the_teacher_is() -> None:
    with pytest.raises(UserError, match=r"leaves no row .*10 rows where .* too low \(it is 0\.400 to 0\.900"):
        choose(rows(numbered(10)), row_filter={"min_confidence": 0.95})


@pytest.mark.usefixtures("confident")
def test_a_filter_without_text_on_request() -> None:
    found = choose(None, row_filter={"min_confidence": 0.5}, limit=0)
    assert (found.unlabelled, dict(found.figures)) == (None, {})


@pytest.mark.usefixtures("confident")
def test_a_number_of_rows_is_what_the_filter_leaves() -> None:
    found = choose(rows(numbered(20)), row_filter={"min_confidence": 0.5}, limit=3)
    assert found.unlabelled is not None
    assert len(found.unlabelled) == 3
    assert set(found.unlabelled.texts) <= set(numbered(20)[::2])
