"""What a stage is given, and the shape of the model that the stages will make."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts.traits import TOKENIZER
from compress.errors import Stopped
from compress.recipe import load_recipe
from compress.run import contexts as module
from compress.run.contexts import Contexts
from compress.run.results import ChainState
from compress.run.selection import Selection
from compress.run.teachers import Teachers

CUT = {"kind": "prune_layers", "drop": 1}
DISTILL = {
    "kind": "distill", "level": "task", "objectives": [{"kind": "soft_targets"}],
    "training": {"steps": 2, "precision": "fp32"},
}  # fmt: skip


def contexts(*stages: dict[str, Any], model: Path | None = None, **more: Any) -> tuple[Contexts, list[str]]:
    content = {"name": "x", "teacher": "t", "data": {"source": "d"}, "seed": 7, "stages": list(stages)}
    selection = Selection.of(load_recipe(content), None, None)
    notes: list[str] = []
    console: Any = SimpleNamespace(note=notes.append, table=None, progress=None)
    sources: Any = SimpleNamespace(given_model=lambda: model, table="rows", corpus="text", opened_table=None)
    stop: Any = SimpleNamespace(requested=more.pop("requested", None))
    return Contexts(selection, sources, more.pop("inputs", {}), "cpu", console, stop, **more), notes


def test_the_first_stage_starts_from_the_given_model_and_tokenizer() -> None:
    one, _ = contexts(CUT, model=Path("m"), inputs={TOKENIZER: Path("t")})
    assert one.get_start() == ChainState(Path("m"), Path("t"))
    assert contexts(CUT)[0].get_start() == ChainState(None, None)


def test_a_context_holds_what_was_made_before_and_the_teachers() -> None:
    one, _ = contexts(CUT, DISTILL)
    teachers = Teachers(Path("task"), Path("general"))
    made = ChainState(Path("cut"), Path("tokens"))
    context = one.of(one.selection.stage(1), Path("runs/x/stages/1-distill"), made, teachers)
    assert (context.model, context.tokenizer) == (Path("cut"), Path("tokens"))
    assert (context.teacher, context.general_teacher) == (Path("task"), Path("general"))
    assert (context.seed, context.device, context.precision) == (7, "cpu", "fp32")
    assert (context.table(), context.corpus()) == ("rows", "text"), "read when they are needed"


def test_a_stage_says_its_plan_before_it_prepares(monkeypatch: pytest.MonkeyPatch) -> None:
    one, notes = contexts(CUT)
    ready = object()
    stage = SimpleNamespace(plan=lambda: ["removes 1 layer", "keeps 2"], prepare=lambda: ready)
    monkeypatch.setattr(module.registry, "stage_class", lambda kind: lambda spec, context: stage)
    spec = one.selection.stage(0)
    context = one.of(spec, Path("runs/x/stages/0-prune_layers"), ChainState(), Teachers())
    assert one.prepare(spec, context) is ready
    assert notes == ["0-prune_layers: removes 1 layer", "0-prune_layers: keeps 2"]


def test_each_stage_plans_from_the_shape_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    one, _ = contexts(CUT, DISTILL, model=Path("m"))
    seen = []

    def plan(made: object, teacher: object, general: object) -> str:
        seen.append((made, teacher, general))
        return f"{made}+"

    monkeypatch.setattr(one, "plan_stage", lambda spec: SimpleNamespace(plan_shape=plan))
    monkeypatch.setattr(module, "read_shape", lambda folder: SimpleNamespace(config="12 layers"))
    monkeypatch.setattr(module, "_require_embeds", lambda *_: None)
    monkeypatch.setattr(module.chain, "check_order", lambda *told: seen.append(told[-1]))
    shape: Any = "teacher"
    assert str(one.plan_shape(shape, shape)).endswith("++"), "two stages"
    assert seen[0] == "12 layers", "the order is checked on the given model"
    assert seen[2][0] == f"{seen[1][0]}+"
    assert [told[1:] for told in seen[1:]] == [("teacher", "teacher")] * 2


def test_a_requested_stop_is_raised_and_says_before_what() -> None:
    contexts(CUT)[0].stop_if_requested("the first step")
    with pytest.raises(Stopped, match="stopped by SIGTERM before the first step"):
        contexts(CUT, requested="SIGTERM")[0].stop_if_requested("the first step")
