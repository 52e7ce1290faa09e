"""What makes a cascade: several models for one label per text, and rows of their own to choose and to measure on."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from compress.cascade import request as module
from compress.cascade.request import CascadeRequest, require_own_rows
from compress.cli.cascade import command
from compress.contracts.confidence import LEAST, MOST
from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError
from compress.stages.shared.proof import format_points
from evaluation.quality.exact_pairs import MOST_CONFIDENCE

HEAD = HeadConfig("classification", labels=2)


def info(head: HeadConfig | None = HEAD, labels: tuple[str, ...] = ("a", "b"), **settings: Any) -> Any:
    heads = {} if head is None else {"task": head}
    return SimpleNamespace(heads=heads, label_names=labels, meta=SimpleNamespace(task_settings=settings))


def table(validation: int = 1000, test: int = 500, *, same: bool = False) -> Any:
    """Rows are numbers; unless `same`, more than half of the test rows are no validation rows."""
    rows = {"validation": np.arange(validation), "test": np.arange(test) - (0 if same else test // 2 + 1)}
    return SimpleNamespace(task="classification", split=rows.__getitem__)


@pytest.fixture(autouse=True)
def compare_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_overlap", lambda rows, others, exact: np.isin(rows, others[0]))


def check(
    monkeypatch: pytest.MonkeyPatch, *models: Any, drop: float = 0.5, data: Any = None, confidence: float = 90.0,
    **settings: Any,
) -> None:  # fmt: skip
    """Models m0, m1 …; `same` marks a copy of the first."""
    known = {Path(f"m{i}"): model for i, model in enumerate(models)}
    prints = {folder: "0" if getattr(model, "same", False) else str(folder) for folder, model in known.items()}
    monkeypatch.setattr(module.modelfolder, "inspect", known.__getitem__)
    monkeypatch.setattr(module.modelfolder, "fingerprint", prints.__getitem__)
    console: Any = None
    named = {folder.name: folder for folder in known}
    CascadeRequest(named, data or table(), 16, settings, drop, console, confidence=confidence).check()


def test_two_classifiers_make_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check(monkeypatch, info(), info())
    check(monkeypatch, info(), info(labels=("b", "a")))  # the same labels in another order


@pytest.mark.parametrize("drop", [-0.1, 100.1, float("nan"), float("inf")])
def test_points_that_cannot_be_lost(drop: float, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="--max-drop"):
        check(monkeypatch, info(), info(), drop=drop)


@pytest.mark.parametrize(
    ("second", "message"),
    [
        (info(None), "m1: the model has no task head"),
        (info(HeadConfig("token_classification", labels=2)), "cascades do not support token-classification"),
        (info(HeadConfig("classification", labels=2, problem="multi_label")), "cascades do not support multi-label"),
        (info(labels=("a", "c")), "m0 and m1 predict different labels"),
        (info(long_text="chunk"), "m1"),
    ],
)
def test_models_that_do_not_fit(second: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=message):
        check(monkeypatch, info(), second)


def test_one_model_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = [info(), info()]
    for copy in copies:
        copy.same = True
    with pytest.raises(UserError, match="m0 and m1 are the same model"):
        check(monkeypatch, *copies)
    with pytest.raises(UserError, match="at least two models"):
        module.require_several(["m0"])


def test_parts_of_long_texts_cannot_be_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="m0"):
        check(monkeypatch, info(), info(), long_text="chunk")
    check(monkeypatch, info(long_text="chunk"), info(), long_text="cut")  # what the message says to do


def test_rows_of_their_own() -> None:
    few = module.FEWEST_ROWS
    require_own_rows(table(few, few), 50)
    with pytest.raises(UserError, match=f"too few validation rows.*required: {few}"):
        require_own_rows(table(few - 1, few), 50)
    with pytest.raises(UserError, match="too few test rows"):
        require_own_rows(table(few, few - 1), 50)
    with pytest.raises(UserError, match="500 of the 500 test rows are also validation rows"):
        require_own_rows(table(same=True), 50)
    with pytest.raises(UserError, match=f"{few} of the {2 * few} test rows are also validation rows"):
        require_own_rows(table(few, 2 * few, same=True), 50)
    require_own_rows(table(few, 2 * few + 1, same=True), 50)


def test_rows_that_a_bound_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    require_own_rows(table(330), 1.0)
    with pytest.raises(UserError, match=r"--max-drop: 329 validation rows cannot prove .* 1 point: 330 are needed"):
        require_own_rows(table(329), 1.0)
    with pytest.raises(UserError, match="at 95 % confidence"):
        require_own_rows(table(330), 1.0, 95)
    check(monkeypatch, info(), info(), drop=0.0)  # only a cascade that is proven to be better is within it


def test_a_confidence_that_can_be_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pytest.approx(100 * MOST_CONFIDENCE) == MOST
    for confidence in (LEAST, MOST):
        check(monkeypatch, info(), info(), drop=1.0, confidence=confidence, data=table(1203))
    with pytest.raises(UserError, match=r"below 1 point: 1,203 are needed at 99\.8 % confidence"):
        check(monkeypatch, info(), info(), drop=1.0, confidence=99.8, data=table(1202))
    for confidence in (49.0, 99.9, 99.95, 100.0, float("nan")):
        with pytest.raises(UserError, match=r"--confidence: .* is not possible; give 50 to 99\.8, such as 90"):
            check(monkeypatch, info(), info(), confidence=confidence)
    assert any("50 to 99.8" in (getattr(option, "help", None) or "") for option in command.params)


def test_what_is_said_where_a_model_alone_is_chosen() -> None:
    console: Any = None
    asked = CascadeRequest({}, table(), 16, {}, 1.0, console)
    assert asked.describe_none("no early exits", "are", "X", 3) == (
        "no early exits that are faster than X are proven to lose at most 1 point of accuracy "
        "(90 % confidence, 3 tested)"
    )
    fitted = dataclasses.replace(asked, max_drop=0.5, rows_chose_models=True)
    assert fitted.describe_none("no cascade of these models", "is", "X", 3) == (
        "no cascade of these models that is faster than X passed the test of losing at most 0.5 points of accuracy "
        "(3 tested)"
    )
    assert [format_points(n) for n in (0, 0.5, 1, 2)] == ["0 points", "0.5 points", "1 point", "2 points"]
