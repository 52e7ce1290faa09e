"""The objects that a run holds, each alone."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.contracts import ChainOptions
from compress.errors import UserError
from compress.recipe import load_recipe
from compress.run import sources as sources_of_a_run
from compress.run.selection import Selection
from compress.run.sources import Sources
from compress.run.stages import Stages

ROOT = Path(__file__).parents[2]
BORN = ("__init__", "__post_init__")  # the second is what a dataclass has in place of the first
TRAINING = {"steps": 2}
CUT = {"kind": "prune_layers", "drop": 1}
DISTILL = {"kind": "distill", "level": "task", "objectives": [{"kind": "hard_labels"}], "training": TRAINING}


def selection(verb: str | None = None, options: ChainOptions | None = None, **more: Any) -> Selection:
    content = {"name": "x", "teacher": "t", "data": {"source": "d"}, "stages": [CUT, DISTILL], **more}
    return Selection.of(load_recipe(content), verb, options)


@pytest.mark.parametrize("folder", ["run", "fit"])
def test_attributes_are_made_in_init_and_nowhere_else(folder: str) -> None:
    wrong = []
    for file in sorted((ROOT / "compress" / folder).rglob("*.py")):
        for cls in (node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.ClassDef)):
            methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
            known = {name for m in methods if m.name in BORN for name, _ in _made(m)}
            known |= {n.target.id for n in cls.body if isinstance(n, ast.AnnAssign) and isinstance(n.target, ast.Name)}
            late = [(name, line) for m in methods if m.name not in BORN for name, line in _made(m)]
            wrong += [f"{file.relative_to(ROOT)}:{line}: {cls.name}.{name}" for name, line in late if name not in known]
    assert not wrong, "\n".join(wrong)


def _made(method: ast.FunctionDef) -> list[tuple[str, int]]:
    """The attributes of `self` that a method assigns, `with … as self.x` included."""
    return [
        (node.attr, node.lineno)
        for node in ast.walk(method)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and isinstance(node.value, ast.Name)
        and node.value.id == "self"
    ]


# --- the stages that run --------------------------------------------------------------------------------------------


def test_an_experimental_recipe_promises_its_result_only_where_it_trains() -> None:
    told = {"experimental": True, "expected": "half a point"}
    assert selection(**told).caution == "recipe x is experimental; expected: half a point"
    assert selection("prune_layers", **told).caution == "recipe x is experimental"  # --no-recover
    assert selection(expected="half a point").caution is None


def test_all_stages_or_those_of_one_kind() -> None:
    every = selection()
    assert (list(every.indices), every.whole, every.is_chain) == ([0, 1], True, False)
    assert every.needs == {"teacher", "data"}
    assert every.method == "distill"
    one = selection("prune_layers")
    assert (list(one.indices), one.whole, one.last.kind) == ([0], True, "prune_layers")
    with pytest.raises(UserError, match="no share stage"):
        selection("share")


def test_a_chain_stops_where_it_is_told_and_begins_anew_where_it_is_told() -> None:
    until = selection(options=ChainOptions(until="0"))
    assert (list(until.indices), until.whole, until.begin) == ([0], False, None)
    begun = selection(options=ChainOptions(begin="distill"))
    assert (list(begun.indices), begun.whole, begun.begin) == ([0, 1], True, 1)
    with pytest.raises(UserError, match="no stage to run"):
        selection(options=ChainOptions(until="0", begin="1"))


def test_a_chain_that_has_a_model_reads_no_teacher_by_name() -> None:
    chain = selection(model="m", teacher=None)
    assert "teacher" not in chain.needs
    assert chain.compresses


def test_the_best_is_selected_only_at_the_end_of_a_whole_run() -> None:
    best = [CUT, {**DISTILL, "result": "best"}]
    assert selection(stages=best).selects_best
    assert not selection(stages=best, options=ChainOptions(until="0")).selects_best


# --- data -----------------------------------------------------------------------------------------------------------


def test_data_are_opened_once_and_their_notes_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    opened, said = [], []
    table = SimpleNamespace(notes=("two rows are left out",), fingerprint="abc")
    monkeypatch.setattr(sources_of_a_run, "open_table_of", lambda *_, **__: opened.append(1) or table)
    sources = Sources(selection(stages=[{"kind": "finetune", "training": TRAINING}], teacher=None), said.append)
    assert "data" not in sources.fingerprints(), "nothing is opened by asking"
    sources.open()
    assert sources.table is sources.table
    assert (opened, said) == ([1], ["two rows are left out"])
    assert sources.fingerprints() == {"data": "abc"}


# --- folders --------------------------------------------------------------------------------------------------------


def stages(chosen: Selection) -> Stages:
    unused: Any = None
    return Stages(chosen, unused, unused, Path("runs/x"), unused)


def test_where_stages_leave_their_models() -> None:
    both = stages(selection())
    assert both.target(0) == Path("runs/x/stages/0-prune_layers/model")
    assert both.target(1) == Path("runs/x/student")
    assert both.work(1, "-control") == Path("runs/x/stages/1-distill-control")
    best = stages(selection(stages=[CUT, {**DISTILL, "result": "best"}]))
    assert best.target(1) == Path("runs/x/stages/1-distill/model")


def test_which_stages_have_a_tracked_run_of_their_own() -> None:
    assert [stages(selection()).has_own_run(i) for i in (0, 1)] == [True, False]
    assert [stages(selection(options=ChainOptions())).has_own_run(i) for i in (0, 1)] == [True, True]
