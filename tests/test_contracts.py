"""What every part must offer, checked on all that the registry finds: a new part is covered the day it lands.

Objectives are held to their mathematics in tests/objectives/test_objectives.py, families to transformers' numbers in
tests/modelfolder, shipped recipes to their header in tests/test_recipes.py; here is what they share.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import click
import numpy as np
import pytest

from compress import registry
from compress.cli import main as frame
from compress.contracts import Frozen, Objective
from compress.recipe import load_recipe
from compress.recipe.library import names as recipe_names
from compress.recipe.schema import Recipe

ROOT = Path(__file__).parents[1]
PACKAGES = (
    "compress.objectives",
    "compress.data.tasks",
    "compress.modelfolder.families",
    "compress.stages.prune_layers.criteria",
    "compress.stages.prune_width.importance",
    "compress.stages.share.patterns",
    "compress.stages.share.starts",
    "compress.stages.factorize.methods",
    "compress.stages.sparsify.methods",
    "compress.stages.finetune.tunings",
    "compress.quantizers",
)
PARTS = [(package, kind) for package in PACKAGES for kind in registry.parts(package)]
STAGES = sorted(registry.stages())


def documented(thing: Any) -> bool:
    text = inspect.getdoc(thing)
    return bool(text) and text.strip().endswith((".", ".)"))


# --- parts --------------------------------------------------------------------------------------------------------


def test_there_is_something_to_check() -> None:
    assert len(PARTS) >= 10
    assert {"tokenizer", "pretrain", "finetune", "distill"} <= set(STAGES)


@pytest.mark.parametrize(("package", "kind"), PARTS)
def test_a_part_explains_itself(package: str, kind: str) -> None:
    assert documented(registry.module(package, kind)), "the file says what it is"
    assert inspect.isclass(registry.load(package, kind))


@pytest.mark.parametrize("kind", registry.parts("compress.objectives"))
def test_an_objective_explains_every_option_and_offers_the_protocol(kind: str) -> None:
    part = registry.load("compress.objectives", kind)
    text = f"{registry.module('compress.objectives', kind).__doc__} {inspect.getdoc(part)}"
    row = registry.schema("compress.objectives", kind)
    options = [name for name in row.model_fields if name not in ("kind", "weight")]
    assert [name for name in options if name not in text] == []
    built = registry.build("compress.objectives", row.model_validate({"kind": kind}))
    asked = {*Objective.__annotations__, *(name for name in vars(Objective) if not name.startswith("_"))}
    assert asked == {"student_needs", "teacher_needs", "coupled", "softens", "bind", "count"}
    assert [name for name in sorted(asked) if not hasattr(built, name)] == []
    assert callable(built)


@pytest.mark.parametrize("kind", registry.parts("compress.objectives"))
def test_an_objective_is_in_some_shipped_recipe_or_taught_by_a_stage(kind: str) -> None:
    """A part that nobody can meet is dead."""
    folders = [package.replace(".", "/") for package in registry.stages().values()]
    sources = " ".join((ROOT / folder / "stage.py").read_text() for folder in folders)
    assert kind in objectives_of_recipes() or f"compress.objectives.{kind}" in sources


@cache
def objectives_of_recipes() -> set[str]:
    """Kinds in the shipped recipes."""
    stages = [stage for name in recipe_names() for stage in load_recipe(name).stages]
    return {row.kind for stage in stages for row in getattr(stage, "objectives", ())}


@pytest.mark.parametrize("name", registry.parts("compress.data.tasks"))
def test_a_task_is_whole(name: str) -> None:
    from compress.data.task import Task
    from compress.encoder.config.encoder import HeadConfig
    from compress.report.rows import METRICS

    task = registry.load("compress.data.tasks", name)()
    assert isinstance(task, Task)
    assert task.kind == name.replace("_", "-")
    assert set(task.optional_roles) <= set(task.text_roles)
    assert set(task.metrics) <= METRICS.keys(), "say in report.METRICS what people call it"
    for method in [m for m in vars(Task) if not m.startswith("_") and callable(getattr(Task, m))]:
        assert documented(getattr(task, method)), method
    kind, problem = task.head
    assert HeadConfig(kind, labels=task.count_outputs(["a"] * (problem != "regression") + ["b"]), problem=problem)


@pytest.mark.parametrize("name", registry.parts("compress.modelfolder.families"))
def test_a_family_is_found_by_the_model_type_of_its_file(name: str) -> None:
    from compress.modelfolder.family import load_families

    family = load_families()[registry.load("compress.modelfolder.families", name).model_type]
    assert family.model_type.replace("-", "_") == name
    tests = " ".join(path.read_text() for path in (ROOT / "tests/modelfolder").glob("*.py"))
    assert family.model_type in tests or name in tests, "no test of model folders names this family"


def test_a_metric_is_right_for_the_perfect_and_bounded_for_any_table() -> None:
    from evaluation.quality.metrics import table_metrics

    assert {"accuracy", "f1_macro"} <= table_metrics().keys()
    tables = np.random.default_rng(0).integers(0, 20, (50, 3, 3))
    for name, score in table_metrics().items():
        assert documented(score), name
        assert float(score(np.diag([4, 5, 6]))) == 1.0, name
        values = score(tables)
        assert values.shape == (50,), f"{name} must take many tables at once, for the bootstrap"
        assert np.all((values >= -1) & (values <= 1)), name


# --- stages and recipes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STAGES)
def test_a_stage_has_its_class_its_command_and_a_recipe(kind: str) -> None:
    spec, stage = registry.stage_spec(kind), registry.stage_class(kind)
    assert documented(spec)
    assert documented(stage) or stage.__doc__
    for method in ("plan_shape", "plan", "prepare"):
        assert callable(getattr(stage, method, None)), f"stages.Stage asks for {method}"
    assert kind.replace("_", "-") in frame._files(), "a verb has a command of its own"
    assert any(s.kind == kind for name in recipe_names() for s in load_recipe(name).stages), "no recipe shows it"


@pytest.mark.parametrize("kind", sorted({*STAGES} - {"tokenizer", "pretrain", "finetune", "export"}))
def test_a_compression_is_tried_before_and_after_every_other(kind: str) -> None:
    if registry.stage_spec(kind).own_pooling:  # works on embedding models alone
        assert kind.replace("_", "-") in (ROOT / "tests/e2e/test_embeddings.py").read_text(encoding="utf-8")
        return
    pairs = (ROOT / "tests/e2e/test_pairs_of_verbs.py").read_text(encoding="utf-8")
    assert f'    "{kind}": {{' in pairs, "give it a row of VERBS and its mark in made_by"


def blocks() -> Iterator[type[Frozen]]:
    """Every block that a recipe may hold."""
    waiting: list[type[Frozen]] = [Recipe, *(registry.stage_spec(kind) for kind in STAGES)]
    seen: set[type[Frozen]] = set()
    while waiting:
        block = waiting.pop()
        if block in seen:
            continue
        seen.add(block)
        yield block
        for field in block.model_fields.values():
            inner = get_args(field.annotation) or (field.annotation,)
            waiting += [kind for kind in inner if isinstance(kind, type) and issubclass(kind, Frozen)]


BLOCKS = sorted(set(blocks()) - {Recipe}, key=lambda block: f"{block.__module__}.{block.__name__}")


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.__module__}.{block.__name__}")
def test_every_key_of_a_recipe_is_explained(block: type[Frozen]) -> None:
    """The words that `compress recipes schema` gives an editor; blocks explain themselves by what is in them."""
    assert documented(block)
    silent = [
        name
        for name, field in block.model_fields.items()
        if not field.description and name not in ("kind", "objectives") and field.annotation not in BLOCKS
    ]
    assert silent == []


@pytest.mark.parametrize("name", recipe_names())
def test_a_recipe_tells_its_plan_without_reading_anything(name: str) -> None:
    from compress.stages.shared.stage import StageContext

    recipe = load_recipe(name)

    def nothing() -> Any:
        raise AssertionError("a plan must not open data")

    context = StageContext(recipe, Path("nowhere"), recipe.seed, "cpu", "fp32", table=nothing, corpus=nothing)
    for spec in recipe.stages:
        lines = registry.stage_class(spec.kind)(spec, context).plan()
        assert lines
        assert all(line and "\n" not in line for line in lines)


# --- commands -----------------------------------------------------------------------------------------------------


def commands() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(frame.cli)
    for name in frame.cli.list_commands(context):
        command = frame.cli.get_command(context, name)
        assert command is not None
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", c) for inner, c in command.commands.items())


def test_no_number_is_called_a_range() -> None:
    """click's own classes say "'x' is not a valid integer range": `cli._types` has others."""
    kinds = {type(param.type) for _, command in commands() for param in command.params}
    assert not kinds & {click.IntRange, click.FloatRange}


COMMANDS = dict(commands())


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_explains_itself_and_every_option(name: str) -> None:
    command = COMMANDS[name]
    assert command.help
    assert command.help.strip().splitlines()[0].endswith(".")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.opts[0]}: no help"
            assert parameter.help.endswith((".", ".yaml")), f"{name} {parameter.opts[0]}: {parameter.help}"


@pytest.mark.parametrize("name", [n for n, c in COMMANDS.items() if not isinstance(c, click.Group)])
def test_a_command_reads_every_option_it_has(name: str) -> None:
    """An option that nothing reads is a promise nobody keeps: the shared ones reach the work as `options`."""
    command = COMMANDS[name]
    source = Path(inspect.getfile(inspect.unwrap(command.callback)))  # pyright: ignore[reportArgumentType]
    function = next(
        node
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef) and node.name == inspect.unwrap(command.callback).__name__  # pyright: ignore
    )
    own = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
    read = {node.id for body in function.body for node in ast.walk(body) if isinstance(node, ast.Name)}
    assert own - read - {"context"} == set()


def test_the_flags_of_a_command_mean_something_to_it() -> None:
    """Flags come in groups; a group must not bring a command a flag that it cannot heed."""
    stages = {"distill", "finetune", "pretrain", "tokenizer", "run", "share", "factorize", "quantize"}
    stages |= {"prune-layers", "prune-vocab", "prune-width", "sparsify", "fit", "make-static", "reduce-dimensions"}
    stages |= {"drop-tokens"}
    for name, command in COMMANDS.items():
        flags = {flag for p in command.params if isinstance(p, click.Option) for flag in p.opts}
        assert ("--resume" in flags) == (name in {*stages, "predict"}), name
        writing = {"cascade", "extend", "analyze", "evaluate", "calibrate", "convert", "export", "predict", "profile"}
        assert ("--output" in flags) == (name in stages | writing), name
        told = {"ui", "runs list", "runs export", "evaluate", "analyze", "cascade", "compare", "promote"}
        assert ("--experiment" in flags) <= (name in stages | told), name
        if name in stages:
            assert flags >= {"--set", "--seed", "--dry-run", "--json", "--quiet", "--tracking-uri"}, name
