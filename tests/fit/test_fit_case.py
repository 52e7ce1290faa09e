"""What a fit opens: the model and its data, and what cannot be fitted."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import RunOptions
from compress.encoder.config.encoder import HeadConfig
from compress.errors import UserError
from compress.fit.request import case as cases
from compress.fit.request.bounds import Bounds
from compress.fit.request.case import Case
from compress.fit.request.options import FitOptions


class Opened:
    """What the model and the data are; a test changes it before it opens a case."""

    def __init__(self) -> None:
        self.heads: dict[str, Any] = {"task": HeadConfig("classification", labels=2)}
        self.columns = {"text": "text", "label": "label"}
        self.reads, self.positions, self.rows = 24, 512, 1000
        self.settings: dict[str, Any] = {}
        self.relabelled: list[Path] = []
        self.said: list[str] = []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    one = Opened()

    def table(labelled_by: str) -> Any:
        return SimpleNamespace(
            columns=one.columns, task="classification", settings={}, label_names=("a", "b"),
            split=lambda _: [0] * one.rows, labelled_by=labelled_by,
        )  # fmt: skip

    def relabel(_: Any, source: Path, *__: Any, **___: Any) -> Any:
        one.relabelled.append(source)
        return table("parent")

    config = lambda: SimpleNamespace(max_positions=one.positions, is_static=False, kept_tokens=None)  # noqa: E731
    meta = SimpleNamespace(task_settings=one.settings)
    inspect = lambda _: SimpleNamespace(heads=one.heads, config=config(), meta=meta)  # noqa: E731
    data = lambda: SimpleNamespace(data=SimpleNamespace(max_length=one.reads, adds_text=False))  # noqa: E731
    monkeypatch.setattr(cases, "resolve", lambda name, *_: Path(name))
    monkeypatch.setattr(cases.modelfolder, "inspect", inspect)
    monkeypatch.setattr(cases.modelfolder, "load_model", lambda *_, **__: None)
    for check in (
        "refuse_quantized", "refuse_low_rank", "refuse_sparse", "refuse_global_projections", "check_same_labels",
    ):  # fmt: skip
        monkeypatch.setattr(cases, check, lambda *_: None)
    monkeypatch.setattr(cases, "get_requested_settings", lambda _: {})
    monkeypatch.setattr(cases, "open_labelled", lambda *_, **__: (data(), table("data")))
    monkeypatch.setattr(cases, "label_with_parent", relabel)
    monkeypatch.setattr(cases, "_open_texts", lambda *_: "texts")
    return one


def open_case(opened: Opened, bounds: Bounds | None = None, **wanted: Any) -> Case:
    console: Any = SimpleNamespace(note=opened.said.append)
    clock: Any = None
    return Case.of(FitOptions("m", bounds or Bounds(max_mb=5), **wanted), RunOptions(), console, clock)


def test_texts_are_cut_at_what_model_and_data_both_allow(opened: Opened) -> None:
    one = open_case(opened)
    assert (one.max_length, one.length, one.metric, one.labelled) == (24, 128, "accuracy", True)
    opened.positions, opened.reads = 32, 64
    one = open_case(opened)
    assert (one.max_length, one.length) == (32, 32)
    assert one.shape["texts"] == "texts", "those of the data, where no length is given"
    one = open_case(opened, length=16)
    assert (one.length, one.shape["texts"]) == (16, None)
    with pytest.raises(UserError, match="--length 64: m has 32 positions"):
        open_case(opened, length=64)


def test_a_model_that_answers_nothing_cannot_be_fitted(opened: Opened) -> None:
    opened.heads = {"mlm": None}
    with pytest.raises(UserError, match="m: the model has no task head; fine-tune it first"):
        open_case(opened)


def test_without_labels_the_parents_answers_count(opened: Opened) -> None:
    opened.columns = {"text": "text"}
    one = open_case(opened)
    assert (one.labelled, one.table.labelled_by, opened.relabelled) == (False, "parent", [Path("m")])  # type: ignore[attr-defined]
    assert opened.said == ["the data has no labels: the metric is the agreement with the parent's predictions"]
    with pytest.raises(UserError, match="--train full: the data has no labels to train with"):
        open_case(opened, train="full")


def test_too_few_test_rows_cannot_show_a_small_loss(opened: Opened) -> None:
    opened.rows = 100
    with pytest.raises(UserError, match="100 test rows are too few"):
        open_case(opened, Bounds(max_drop=1.0))
    assert open_case(opened, Bounds(max_drop=1.0), uncertified=True).labelled
    opened.rows = 381
    assert open_case(opened, Bounds(max_drop=1.0)).bounds.max_drop == 1.0


def test_a_cascade_of_a_model_that_reads_chunks_is_rejected_before_anything_is_made(opened: Opened) -> None:
    opened.settings["long_text"] = "chunk"
    with pytest.raises(UserError, match="m: cascades and early exits do not read long texts in chunks"):
        open_case(opened, Bounds(max_drop=1, asked="fastest"), cascade=True)
