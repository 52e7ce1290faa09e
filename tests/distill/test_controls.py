"""Which controls a distillation is compared with: from the student's start, and from the teacher's layers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.modules.model import Model
from compress.modelfolder.folder import save_model
from compress.recipe import load_recipe
from compress.recipe.schema import Recipe
from compress.stages.distill.controls import find_teacher_layers, list_controls

TASK = {"task": HeadConfig("classification", labels=2)}
MLM = {"mlm": HeadConfig("masked_lm")}
LAST = {
    "kind": "distill", "level": "task_specific", "objectives": [{"kind": "soft_targets"}], "training": {"steps": 9},
}  # fmt: skip
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmno"]
FIRST = {**LAST, "level": "general", "student": {"layers": [1, 2]}}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A teacher of four layers, and encoders that a student may have started from."""
    made = tmp_path_factory.mktemp("models")
    for name, depth, hidden, heads in (
        ("teacher", 4, 16, TASK), ("general", 2, 16, MLM), ("narrow", 2, 8, MLM), ("deep", 5, 16, MLM),
        ("trained", 2, 16, TASK),
    ):  # fmt: skip
        config = EncoderConfig.uniform(vocabulary=20, hidden=hidden, layers=depth, heads=2, feed_forward=32)
        files = {"vocab.txt": "\n".join(WORDS).encode()}
        save_model(made / name, Model(config, heads).initialize(0), tokenizer_files=files)
    return made


def recipe(*stages: dict[str, Any]) -> Recipe:
    data = {"source": "opinions"}
    corpus = {"source": "opinions-corpus"}
    return load_recipe({"name": "x", "teacher": "t", "data": data, "corpus": corpus, "stages": [*stages]})


def context(folders: Path, start: str | None, recipe: Recipe) -> Any:
    model = None if start is None else folders / start
    return SimpleNamespace(model=model, teacher=folders / "teacher", ensemble=None, recipe=recipe)


def roles(folders: Path, start: str | None, *stages: dict[str, Any]) -> list[str]:
    one = recipe(*stages)
    return list(list_controls(one.stages[-1], context(folders, start, one), 5))


def test_a_student_from_a_general_stage_has_a_control_from_the_teachers_layers(folders: Path) -> None:
    one = recipe(FIRST, LAST)
    found = list_controls(one.stages[-1], context(folders, "general", one), 5)
    assert list(found) == ["control", "control-from-teacher"]
    same, best = found.values()
    assert same.student is None
    assert best.student is not None
    assert (best.student.layers, best.student.init, best.student.head) == ((1, 2), "teacher", "teacher")
    for stage in found.values():
        assert ([row.kind for row in stage.objectives], stage.training.steps) == (["hard_labels"], 5)
        assert (stage.use_unlabelled, stage.control, stage.cache) == (False, False, None)


def test_layers_are_evenly_spaced_where_the_recipe_names_none(folders: Path) -> None:
    one = recipe(LAST)
    assert find_teacher_layers(one.stages[-1], context(folders, "general", one)) == [0, 3]


@pytest.mark.parametrize(
    ("cut", "found"),
    [
        ({"layers": [1, 5]}, [0, 3]),
        ({"layers": "every-other", "count": 3}, [0, 3]),
        ({"layers": "last", "count": 6}, [0, 3]),
        ({"layers": "last", "count": 2}, [2, 3]),
        ({"layers": "every-other-from-last"}, [1, 3]),
    ],
)
def test_layers_are_evenly_spaced_where_the_recipe_names_those_of_a_deeper_model(
    folders: Path, cut: dict[str, Any], found: list[int]
) -> None:
    """Its first stage may have cut a general teacher that is deeper than this one, and a later stage the student."""
    one = recipe({**FIRST, "student": cut}, LAST)
    assert find_teacher_layers(one.stages[-1], context(folders, "general", one)) == found


@pytest.mark.parametrize("start", ["narrow", "deep", "trained", "teacher"])
def test_one_control_where_the_student_could_not_start_from_the_teacher_or_is_trained(
    folders: Path, start: str
) -> None:
    assert roles(folders, start, LAST) == ["control"]


def test_one_control_where_the_student_is_cut_from_the_teacher(folders: Path) -> None:
    assert roles(folders, None, {**LAST, "student": {"layers": [0, 2]}}) == ["control"]


def test_a_checkpoint_without_a_task_head_counts_as_a_worse_start(folders: Path) -> None:
    student = {"model": str(folders / "general")}
    assert roles(folders, None, {**LAST, "student": student}) == ["control", "control-from-teacher"]
    assert roles(folders, None, {**LAST, "student": {**student, "hidden": 8}}) == ["control"]


@pytest.mark.parametrize(
    ("start", "found"),
    [("student", ["control"]), ("teacher", ["control-from-teacher"]), ("both", ["control", "control-from-teacher"])],
)
def test_the_recipe_chooses_the_starts(folders: Path, start: str, found: list[str]) -> None:
    assert roles(folders, "general", FIRST, {**LAST, "control_start": start}) == found


def test_no_control_where_none_is_asked_for(folders: Path) -> None:
    assert roles(folders, "general", FIRST, {**LAST, "control": False}) == []
    assert roles(folders, "general", FIRST) == [], "hard labels need a task"


def test_the_default_leaves_hashes_as_they_were() -> None:
    assert "control_start" not in recipe(LAST).stages[0].model_dump(mode="json")
    assert recipe(LAST).hash() != recipe({**LAST, "control_start": "student"}).hash()
