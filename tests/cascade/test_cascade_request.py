"""What makes a cascade: several models for one label per text, and rows of their own to choose and to measure on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.cascade import request as module
from compress.cascade.request import CascadeRequest, require_own_rows
from compress.encoder.config.heads import HeadConfig
from compress.errors import UserError

HEAD = HeadConfig("classification", labels=2)


def info(head: HeadConfig | None = HEAD, labels: tuple[str, ...] = ("a", "b"), **settings: Any) -> Any:
    heads = {} if head is None else {"task": head}
    return SimpleNamespace(heads=heads, label_names=labels, meta=SimpleNamespace(task_settings=settings))


def table(validation: int = 1000, test: int = 500, *, same: bool = False) -> Any:
    rows = {"validation": validation, "test": test}
    return SimpleNamespace(
        task="classification", split=lambda name: range(rows[name]), has_same_rows=lambda one, two: same
    )


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


def test_rows_of_their_own() -> None:
    few = module.FEWEST_ROWS
    require_own_rows(table(few, few), 50)
    with pytest.raises(UserError, match=f"too few validation rows.*required: {few}"):
        require_own_rows(table(few - 1, few), 50)
    with pytest.raises(UserError, match="too few test rows"):
        require_own_rows(table(few, few - 1), 50)
    with pytest.raises(UserError, match="the validation rows are the test rows"):
        require_own_rows(table(same=True), 50)


def test_rows_that_a_bound_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    require_own_rows(table(330), 1.0)
    with pytest.raises(UserError, match=r"--max-drop: 329 validation rows cannot prove .* 1 points: 330 are needed"):
        require_own_rows(table(329), 1.0)
    with pytest.raises(UserError, match="at 95 % confidence"):
        require_own_rows(table(330), 1.0, 95)
    check(monkeypatch, info(), info(), drop=0.0)  # only a cascade that is proven to be better is within it
    for confidence in (49.0, 100.0, float("nan")):
        with pytest.raises(UserError, match="--confidence"):
            check(monkeypatch, info(), info(), confidence=confidence)
