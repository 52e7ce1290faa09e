"""The model that a stage converts, and the input that the conversion is judged on."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from compress.encoder.config.encoder import EncoderConfig
from compress.errors import UserError
from compress.modelfolder.meta import FolderMeta
from compress.objectives.hard_labels import Objective as HardLabels
from compress.objectives.masked_lm import Objective as MaskedLM
from compress.stages.shared import originals
from compress.stages.shared.divergence import DrawnVectors
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.originals import Level, Original, plan_same_shape


class Loaded(SimpleNamespace):
    """A model folder as far as it is asked for."""


def context(**known: Any) -> Any:
    return SimpleNamespace(
        **{"model": None, "teacher": Path("teacher"), "general_teacher": Path("general"), "device": "cpu", "seed": 0,
           "table": lambda: "table", "corpus": lambda: "corpus", **known},
    )  # fmt: skip


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[str]]]:
    """(folder, heads it must have) of each model that is loaded; "checked" where its labels were compared."""
    found: list[tuple[str, list[str]]] = []

    def load(folder: Path, require: set[str], device: str) -> Loaded:
        found.append((str(folder), sorted(require)))
        return Loaded(model=None)

    monkeypatch.setattr(originals, "load_model", load)
    monkeypatch.setattr(originals, "check_same_labels", lambda loaded, table: found.append(("checked", [table])))
    return found


def test_the_level_says_which_teacher_is_converted(loads: list[tuple[str, list[str]]]) -> None:
    Original.of(context(), "task_specific", "share")
    Original.of(context(), "general", "share")
    assert loads == [("teacher", ["task"]), ("checked", ["table"]), ("general", ["mlm"])]


def test_the_model_of_the_stage_before_goes_first(loads: list[tuple[str, list[str]]]) -> None:
    assert Original.of(context(model=Path("before")), "general", "share").folder == Path("before")
    assert loads == [("before", ["mlm"])]
    with pytest.raises(UserError, match="stage share needs a trained model to convert"):
        Original.of(context(teacher=None), "task_specific", "share")


@pytest.mark.parametrize(("level", "shape"), [("general", 2), ("task_specific", 1)])
def test_its_shape_is_that_of_the_teacher_of_its_level(level: Level, shape: int, tiny_config: EncoderConfig) -> None:
    teacher, general = (ModelShape(depth, 16, "words", config=tiny_config) for depth in (1, 2))
    checked: list[str] = []
    made = plan_same_shape(level, None, teacher, general, lambda config, where: checked.append(where))
    assert made == ModelShape(shape, 16, "words", config=None), "which matrices it has is not known before"
    assert checked == [""], "no folder yet"


def test_a_shape_without_a_config_is_not_checked() -> None:
    start = ModelShape(3, 16)
    check: Any = None
    assert plan_same_shape("general", start, None, None, check) is start
    assert plan_same_shape("general", None, start, None, check) is None


@pytest.mark.parametrize(
    ("level", "answers", "kind"),
    [("task_specific", "task", HardLabels), ("task_specific", "vectors", DrawnVectors), ("general", "task", MaskedLM)],
)
def test_the_objective_is_that_of_the_training(
    level: Level, answers: str, kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: Any = Loaded(model=None)
    monkeypatch.setattr(originals, "task_answers", lambda model: answers)
    assert isinstance(Original(context(), level, Path("m"), loaded).objective(), kind)


def test_input_is_read_in_the_order_of_the_first_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def source(plan: Any, seed: int) -> Any:
        made.append(plan.batch_rows)
        step = lambda epoch, index: [torch.tensor([epoch, index])]  # noqa: E731
        return SimpleNamespace(steps=lambda epoch: 3, step=step)

    encoded: list[str] = []
    data = SimpleNamespace(source=source)
    monkeypatch.setattr(originals.TaskData, "encode", lambda table, *_: (encoded.append(table), data)[1])
    loaded: Any = Loaded(model=None)
    original = Original(context(), "task_specific", Path("m"), loaded)
    found: list[Any] = [batch.tolist() for batch in original.batches(7)]
    list(original.batches(8))
    assert found == [[0, 0], [0, 1], [0, 2]]
    assert made == [7, 8]
    assert encoded == ["table"], "rows are encoded once"


@pytest.mark.parametrize(("level", "told"), [("general", (None, "corpus")), ("task_specific", ("table", None))])
def test_the_card_names_the_data_of_its_level(level: Level, told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def folder_meta(context: Any, parents: Any, table: Any, corpus: Any) -> FolderMeta:
        asked.append((parents, (table, corpus)))
        return FolderMeta(notes=("before",))

    monkeypatch.setattr(originals, "folder_meta", folder_meta)
    loaded: Any = Loaded(model=None)
    assert Original(context(), level, Path("m"), loaded).meta("after").notes == ("before", "after")
    assert asked == [({"parent": Path("m")}, told)]
