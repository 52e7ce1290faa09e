"""Objectives that do not fit what a student answers: vectors, or a teacher that is columns of the data."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from compress.contracts import Needs
from compress.data.tasks import task_of
from compress.errors import UserError
from compress.stages.distill.column_teacher import ColumnTeacher, check_columns_suffice
from compress.stages.distill.spec import Spec
from compress.stages.distill.vectors import check_objectives


def spec(**changes: Any) -> Spec:
    given: dict[str, Any] = {
        "kind": "distill", "level": "task_specific", "student": {"layers": [0, 1]},
        "objectives": [{"kind": "soft_targets"}], "training": {"steps": 100, "learning_rate": 5e-5},
    }  # fmt: skip
    return Spec.model_validate(given | changes)


def objective(**changes: Any) -> Any:
    return SimpleNamespace(**{"student_needs": Needs(logits=True), "teacher_needs": Needs(logits=True), **changes})


def named(**objectives: Any) -> dict[str, tuple[float, nn.Module]]:
    return {name: (1.0, one) for name, one in objectives.items()}


# --- vectors ------------------------------------------------------------------------------------------------------


def test_objectives_that_fit_pass() -> None:
    check_objectives(named(vectors=objective(of_vectors=True)), spec(), task_of("embedding"))
    check_objectives(named(soft_targets=objective()), spec(), task_of("classification"))
    for kind in ("classification", "pair-classification"):
        check_objectives(named(decoupled=objective(one_class=True)), spec(), task_of(kind))
    hidden = objective(student_needs=Needs(hidden_states=True))
    check_objectives(named(hidden=hidden), spec(), task_of("embedding"))
    check_objectives(named(hidden=hidden), spec(), task_of("classification"))
    check_objectives({}, spec(control=True, select="best"), task_of("classification"))


@pytest.mark.parametrize(
    ("one", "kind", "message"),
    [
        (objective(), "embedding", "bad needs the outputs of a task head, and this is an embedding model"),
        (objective(of_vectors=True), "classification", "bad compares .*, and the model answers a task; .*distilbert-t"),
        (objective(of_vectors=True), "reranking", "bad compares sentence .*, and the model is a reranker; .*rerank-d"),
        (objective(one_class=True), "token-classification", "bad needs one class per row, and the task is token-cl"),
        (objective(one_class=True), "regression", "bad needs one class per row, and the task is regression; use soft"),
        (objective(one_class=True), "multi-label", "bad needs one class per row, and the task is multi-label; use so"),
        (objective(one_class=True), "embedding", "bad needs the outputs of a task head, and this is an embedding"),
    ],
)
def test_the_objective_that_does_not_fit_is_named(one: Any, kind: str, message: str) -> None:
    hidden = objective(student_needs=Needs(hidden_states=True))
    with pytest.raises(UserError, match=message):
        check_objectives(named(good=hidden, bad=one), spec(), task_of(kind))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("control", True),
        ("select", "best"),
        ("stop", "agreement"),
        ("row_filter", {"min_confidence": 0.5}),
        ("augmentation", {"method": "mix"}),
    ],
)
def test_what_needs_classes_is_rejected_for_vectors(key: str, value: Any) -> None:
    with pytest.raises(UserError, match=f"{key} is not supported for sentence embeddings"):
        check_objectives({}, spec(**{key: value}), task_of("embedding"))


# --- columns ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("needs", [None, Needs(logits=True)])
def test_columns_are_enough_for_logits(needs: Needs | None) -> None:
    check_columns_suffice(spec(noise={"rate": 0.1}), named(a=objective(teacher_needs=needs)), tagged=False)


@pytest.mark.parametrize("needs", [Needs(hidden_states=True), Needs(logits=True, mlm="all"), Needs(last_hidden=True)])
def test_an_objective_that_looks_inside_a_teacher(needs: Needs) -> None:
    objectives = named(soft=objective(), deep=objective(teacher_needs=needs))
    with pytest.raises(UserError, match="--teacher-column: objective deep reads more of the teacher"):
        check_columns_suffice(spec(), objectives, tagged=False)


@pytest.mark.parametrize(
    ("changes", "tagged", "message"),
    [
        ({"augmentation": {"method": "mix"}}, False, "augmentation is not supported with teacher columns: no teacher"),
        ({"cache": {"path": "c"}}, False, "cache is not supported with teacher columns: no model is run"),
        ({"noise": {"rate": 0.1}}, True, "noise is not supported with teacher columns of tags"),
    ],
)
def test_options_that_need_a_teacher(changes: dict[str, Any], tagged: bool, message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_columns_suffice(spec(**changes), {}, tagged=tagged)


def batch(rows: list[int]) -> Any:
    return SimpleNamespace(row_ids=torch.tensor(rows), input_ids=torch.zeros(3, dtype=torch.int64), tokens=3)


def test_rows_get_their_own_logits_in_the_order_of_the_batch() -> None:
    examples: Any = SimpleNamespace(words=None, offsets=None)
    teacher = ColumnTeacher(np.arange(8, dtype=np.float32).reshape(4, 2), examples)
    found = teacher(batch([3, 0, 3]), Needs(logits=True))
    assert found.logits is not None
    assert found.logits.tolist() == [[6, 7], [0, 1], [6, 7]]
    assert teacher.count_operations(batch([3]), Needs(logits=True)) == 0
    with pytest.raises(IndexError):
        teacher(batch([4]), Needs(logits=True))


def test_words_get_the_logits_of_all_tokens_of_their_row() -> None:
    examples: Any = SimpleNamespace(words=np.zeros(6), offsets=np.array([0, 2, 3, 6]))
    teacher = ColumnTeacher(np.arange(6, dtype=np.float32)[:, None], examples)
    found = teacher(batch([2, 1]), Needs(logits=True))
    assert found.logits is not None
    assert found.logits[:, 0].tolist() == [3, 4, 5, 2]
