"""`--plan-data`: the rows that would be trained on, counted, with a few of each."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.contracts import RunOptions
from compress.data.tables.table import Rows
from compress.errors import UserError
from compress.experiments import plan_data as module
from compress.stages.distill.augmentation_spec import AugmentationSpec


def rows(count: int, word: str, **more: str) -> Rows:
    texts = {"text": [f"{word} {i}" for i in range(count)], **{role: [text] * count for role, text in more.items()}}
    columns = {role: pa.chunked_array([pa.array(column)]) for role, column in texts.items()}
    return Rows(columns, np.zeros(count, np.int64), np.arange(count))


def test_a_part_shows_evenly_spaced_rows() -> None:
    found = module._part("rows", 99, rows(5, "a", text_pair="b\x1bc\x1e"))
    assert (found["source"], found["rows"]) == ("rows", 99)
    assert [text.partition(" | ")[0] for text in found["examples"]] == ["a 0", "a 2", "a 4"]
    assert "\x1b" not in found["examples"][0]
    assert all(len(text) <= module.WIDTH for text in module._part("x", 1, rows(1, "long " * 99))["examples"])


def plan(monkeypatch: pytest.MonkeyPatch, *stages: Any, unlabelled: int = 0, **data: Any) -> list[str]:
    """What is printed for these stages, with 4 labelled rows."""
    splits = {"train": rows(4, "labelled")} | ({"unlabelled": rows(unlabelled, "free")} if unlabelled else {})

    def table(splits: Any) -> Any:
        return SimpleTable(splits=splits, split=splits.__getitem__, name="d")

    known = SimpleNamespace(**{"adds_text": False, "unlabelled_rows": None, **data})
    selection = SimpleNamespace(
        indices=range(len(stages)), stage=lambda i: stages[i], recipe=SimpleNamespace(data=known)
    )
    context = SimpleNamespace(recipe=SimpleNamespace(data=SimpleNamespace(allow_overlap=True)))
    run = SimpleNamespace(
        selection=selection, sources=SimpleNamespace(open=lambda: None, table=table(splits)),
        contexts=SimpleNamespace(get_start=lambda: None, of=lambda *_: context),
    )  # fmt: skip
    monkeypatch.setattr(module, "Run", lambda *_: run)
    monkeypatch.setattr(module.dataclasses, "replace", lambda _, splits: table(splits))
    monkeypatch.setattr(module, "_augment", lambda run, place, spec, part: part.split("train"))
    lines: list[str] = []
    console: Any = SimpleNamespace(result=lines.append, document=lambda _: None)
    recipe: Any = None
    module.plan_data(recipe, RunOptions(), console, verb="distill")
    return lines


class SimpleTable(SimpleNamespace):
    """A table as far as the plan reads it."""


GENERAL = SimpleNamespace(level="general")
TASK: dict[str, Any] = {"level": "task_specific", "use_unlabelled": False}


def counts(lines: list[str]) -> list[str]:
    return [line for line in lines if not line.startswith("  ")]


def test_the_stage_is_the_first_that_reads_labelled_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="no stage trains on labelled rows"):
        plan(monkeypatch, GENERAL)
    copies = AugmentationSpec(method="mix").copies
    assert counts(plan(monkeypatch, GENERAL, SimpleNamespace(**TASK))) == [
        "training rows with labels: 4",
        f"copies by mix, at most {copies} of each text (add --augment mix): {4 * copies}",
    ]


def test_a_recipe_s_own_augmentation_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    own = AugmentationSpec(method="mix", copies=2)
    assert counts(plan(monkeypatch, SimpleNamespace(**TASK, augmentation=own)))[-1] == (
        "copies by mix, at most 2 of each text: 8"
    )


@pytest.mark.parametrize(
    ("stage", "data", "shown"),
    [
        ({}, {}, None),
        ({"use_unlabelled": "auto"}, {}, "9"),
        ({}, {"adds_text": True}, "9"),
        ({"use_unlabelled": True}, {"unlabelled_rows": 5}, "5"),
        ({"use_unlabelled": True}, {"unlabelled_rows": 50}, "9"),
    ],
)
def test_unlabelled_rows_are_counted_where_they_are_used(
    stage: dict[str, Any], data: dict[str, Any], shown: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = plan(monkeypatch, SimpleNamespace(**{**TASK, **stage}), unlabelled=9, **data)
    found = [line for line in lines if line.startswith("rows without labels")]
    assert found == ([] if shown is None else [f"rows without labels: {shown}"])
