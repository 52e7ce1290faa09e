"""Which models a run measures side by side, what they are called, and where their figures go."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from measured_models import measured_model

from compress.contracts import ChainOptions, RunOptions, StageResult
from compress.modelfolder.ensemble import Ensemble, Member
from compress.recipe import load_recipe
from compress.run import measured
from compress.run.measured import START, StageMeasurer
from compress.run.results import ChainState
from compress.run.run import Run
from compress.run.selection import Selection
from compress.run.stages import Stages
from compress.run.teachers import Teachers

TRAINING = {"steps": 2}
CUT = {"kind": "prune_layers", "drop": 1}
DISTILL = {
    "kind": "distill", "level": "task", "objectives": [{"kind": "soft_targets"}], "training": TRAINING,
}  # fmt: skip
QUANTIZE = {"kind": "quantize", "scheme": "per-token"}
EXPORT = {"kind": "export"}
MADE = ChainState(Path("runs/x/student"))
TAUGHT = Teachers(Path("taught"))


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model has a task head."""
    monkeypatch.setattr(measured.modelfolder, "inspect", lambda _: SimpleNamespace(heads={"task": None}))


def measurer(*stages: dict[str, Any], chain: ChainOptions | None = None, **more: Any) -> StageMeasurer:
    content = {"name": "x", "teacher": "t", "data": {"source": "d"}, "stages": list(stages), **more}
    selection = Selection.of(load_recipe(content), None, chain)
    unused: Any = None
    start = None if selection.recipe.model is None else Path(selection.recipe.model)
    sources: Any = SimpleNamespace(given_model=lambda: start, table=None)
    one = Stages(selection, unused, unused, Path("runs/x"), unused)
    return StageMeasurer(selection, sources, one, unused, RunOptions(), unused)


def roles(
    one: StageMeasurer, teachers: Teachers = TAUGHT, controls: dict[str, StageResult] | None = None
) -> list[tuple[str, str]]:
    return [(s.name, s.role) for s in one._subjects(teachers, MADE, controls or {})]


# --- who is measured ------------------------------------------------------------------------------------------------


def test_teacher_and_student() -> None:
    assert roles(measurer(DISTILL)) == [("teacher", "teacher"), ("x", "student")]


def test_a_run_without_a_teacher_measures_its_model_alone() -> None:
    assert roles(measurer({"kind": "finetune", "training": TRAINING}), Teachers()) == [("x", "teacher")]


def test_a_control_is_measured_beside_the_student() -> None:
    controls = {"control": StageResult(Path("c"), 2, 1.0)}
    assert roles(measurer(DISTILL), controls=controls)[1:] == [("x", "student"), ("control", "control")]
    names = roles(measurer(QUANTIZE, DISTILL), controls=controls)
    assert names == [
        ("teacher", "teacher"), ("PTQ", "stage-0"), ("QAT alone", "control"), ("QAT + distillation", "student"),
    ]  # fmt: skip


def test_both_controls_are_measured_where_there_are_two() -> None:
    controls = {role: StageResult(Path(role), 2, 1.0) for role in ("control", "control-from-teacher")}
    one = measurer(DISTILL)
    assert roles(one, controls=controls)[2:] == [
        ("control", "control"), ("control from teacher", "control-from-teacher"),
    ]  # fmt: skip
    assert one._tracked("control-from-teacher") == Path("runs/x/stages/0-distill-control-from-teacher")


def test_what_stages_make_on_the_way_is_measured_by_its_milestone() -> None:
    assert roles(measurer(CUT, DISTILL))[1:] == [("after cutting", "stage-0"), ("x", "student")]
    assert [name for name, _ in roles(measurer(CUT, DISTILL, CUT, DISTILL))] == [
        "teacher", "after cutting 1", "after cutting 2", "x",
    ]  # fmt: skip


def test_a_chain_measures_every_stage_and_where_it_starts() -> None:
    one = measurer(CUT, DISTILL, QUANTIZE, chain=ChainOptions(), model="start")
    assert roles(one) == [
        ("teacher", "teacher"), ("start", START), ("0-prune_layers", "stage-0"), ("1-distill", "stage-1"),
        ("x", "student"),
    ]  # fmt: skip
    alone = measurer(CUT, DISTILL, QUANTIZE, chain=ChainOptions(), model="start", teacher=None)
    assert roles(alone, Teachers())[0] == ("start", "teacher"), "nobody else is there to compare with"
    same = measurer(CUT, DISTILL, chain=ChainOptions(), model="taught")
    assert [name for name, _ in roles(same)] == ["teacher", "0-prune_layers", "x"], "it is measured once"


def test_a_chain_that_begins_with_training_is_compared_with_its_first_model() -> None:
    one = measurer({"kind": "finetune", "training": TRAINING}, CUT, chain=ChainOptions(), teacher=None)
    assert roles(one, Teachers()) == [("0-finetune", "teacher"), ("x", "student")]


def test_an_exported_model_is_timed_in_its_file(tmp_path: Path) -> None:
    one = measurer(CUT, EXPORT, chain=ChainOptions(), model="start")
    assert [s.runtime for s in one._subjects(TAUGHT, MADE, {})] == [None, None, None, "onnxruntime"]
    one.options = RunOptions(device="cuda")
    assert {s.runtime for s in one._subjects(TAUGHT, MADE, {})} == {None}


# --- where figures go -----------------------------------------------------------------------------------------------


def test_journals_of_models_that_are_not_the_result() -> None:
    one = measurer(QUANTIZE, DISTILL)
    assert one._tracked("control") == Path("runs/x/stages/1-distill-control")
    assert one._tracked("student") == Path("runs/x/distilled")
    assert one._tracked("stage-0") == Path("runs/x/stages/0-quantize")
    assert one._tracked("teacher-2") == Path("runs/x/reference-2")


def test_teachers_that_have_a_run_of_their_own_are_not_logged_again() -> None:
    members = tuple(Member(name, Path(name), 0.5) for name in "ab")
    assert StageMeasurer._roles_told(Teachers(Path("a"))) == set()
    assert StageMeasurer._roles_told(Teachers(Path("a"), told=frozenset({0}))) == {"teacher"}
    several = Teachers(Path("a"), told=frozenset({1}), ensemble=Ensemble(members))
    assert StageMeasurer._roles_told(several) == {"teacher-2"}, "the ensemble itself has none"


def test_where_nothing_was_trained_longer_training_is_not_the_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "describe_weak", lambda *_: "accuracy 50 % is not above 60 %")
    log: Any = SimpleNamespace(tags=lambda _: None)
    advice = [
        measurer(*stages)._tell_weak(log, [], [measured_model("student")], None)[0]["do"]
        for stages in ([QUANTIZE], [QUANTIZE, DISTILL])
    ]
    assert advice == [measured.NOTHING_TRAINED, measured.TRAIN]


# --- the waterfall's steps ------------------------------------------------------------------------------------------


def test_steps_of_a_chain_are_in_its_order() -> None:
    one = measurer(CUT, DISTILL, QUANTIZE, chain=ChainOptions(), model="start")
    found = [measured_model(role, name=role) for role in ("teacher", START, "stage-1", "stage-0", "student")]
    assert [(step.name, step.measured.subject.role) for step in one._steps(found)] == [
        (START, START), ("0-prune_layers", "stage-0"), ("1-distill", "stage-1"), ("2-quantize", "student"),
    ]  # fmt: skip
    assert one._steps([m for m in found if m.subject.role != START])[0].name == "teacher"
    assert measurer(CUT, DISTILL)._steps(found) == [], "no chain"
    assert measurer(CUT, chain=ChainOptions())._steps(found) == [], "one stage falls nowhere"


# --- what is selected -----------------------------------------------------------------------------------------------


def test_the_result_is_selected_from_what_was_there_before_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "task_choice", lambda _: ("accuracy", max))
    one = measurer(QUANTIZE, {**DISTILL, "select": "best"})
    last = StageResult(Path("d"), 2, 1.0, best={"accuracy": 0.9}, start={"accuracy": 0.88})
    made = ChainState(Path("d"), before=one.stages.target(0), last=last)
    controls = {"control": StageResult(Path("c"), 2, 1.0, best={"accuracy": 0.89})}
    found = one._candidates(made, controls)
    assert [(c.name, c.role, c.value) for c in found] == [
        ("PTQ", "stage-0", 0.88), ("QAT alone", "control", 0.89), ("QAT + distillation", "student", 0.9),
    ]  # fmt: skip
    assert [c.name for c in one._candidates(ChainState(Path("d"), last=last), {})] == ["QAT + distillation"]
    assert measurer(QUANTIZE, DISTILL)._candidates(made, controls) == [], "the last one is the result"


# --- what a run says of stages that it did not run ------------------------------------------------------------------


def test_reused_stages_are_named_with_the_run_that_made_them() -> None:
    content = {"name": "x", "teacher": "t", "data": {"source": "d"}, "stages": [CUT, DISTILL, QUANTIZE]}
    one = Run.__new__(Run)
    one.recipe = load_recipe(content)
    one.selection = Selection.of(one.recipe, None, ChainOptions())
    first, second = Path("runs/a"), Path("runs/b")
    made = ChainState(reused={"0-prune_layers": first, "1-distill": first})
    assert one._reused(made) == "reused: 0-prune_layers, 1-distill from runs/a; run now: 2-quantize"
    resumed = dataclasses.replace(made, reused={"1-distill": first}, resumed=("0-prune_layers",))
    line = "reused: 1-distill from runs/a; already done: 0-prune_layers; run now: 2-quantize"
    assert one._reused(resumed) == line, "what a resumed run had made itself is neither reused nor run now"
    every = ChainState(reused={"0-prune_layers": first, "1-distill": second, "2-quantize": first})
    assert one._reused(every) == "reused: 0-prune_layers, 2-quantize from runs/a; 1-distill from runs/b"
