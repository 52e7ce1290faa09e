"""Every shipped recipe: it parses, says how to run it and what to expect, and hashes like what it is."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import pytest

from compress import registry
from compress.recipe import list_recipes, load_recipe, parse_override
from compress.recipe.library import folder, names
from compress.stages.distill import layers

REQUIRED = {"teacher", "distilbert", "distilbert-task", "smoke"}
VERBS = "run|distill|finetune|pretrain|tokenizer|share|prune-layers|prune-vocab|prune-width|factorize|sparsify|quantize"
VERBS += "|drop-tokens|make-static|reduce-dimensions"
COMMAND = re.compile(rf"# (compress (?:{VERBS}) .+)")


def header(name: str) -> list[str]:
    lines = (folder() / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    return lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]


def test_all_recipes_are_seen() -> None:
    assert set(names()) >= REQUIRED
    assert sorted(path.stem for path in folder().rglob("*.y*ml")) == names(), "a recipe that no command finds"
    assert folder() == Path(__file__).parents[1] / "recipes"


@pytest.mark.parametrize("name", names())
def test_it_is_valid(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.name == name
    assert recipe.description
    assert recipe.method
    assert recipe.expected
    assert not recipe.description.endswith(".")


@pytest.mark.parametrize("name", names())
def test_it_opens_with_its_command_prerequisites_paper_and_expectation(name: str) -> None:
    lines = header(name)
    command = COMMAND.fullmatch(lines[0])
    assert command, f"{name}.yaml must open with the command that runs it"
    words = shlex.split(command[1])
    assert name in words or words[1] == name, "the command must name this recipe"
    text = "\n".join(lines)
    for word in ("# Prerequisites: ", "# Paper: ", "# Expected: "):
        assert word in text, f"{name}.yaml: no line '{word}'"


@pytest.mark.parametrize("name", names())
def test_its_teacher_and_stages_exist(name: str) -> None:
    recipe = load_recipe(name)
    if recipe.teacher is not None:
        made = load_recipe(recipe.teacher)
        assert made.teacher is None, "a teacher's teacher would run twice"
        assert made.data == recipe.data or made.data is None or recipe.data is None or _same_source(made, recipe)
    for stage in recipe.stages:
        assert stage.kind in registry.stages()


@pytest.mark.parametrize("name", [n for n in names() if load_recipe(n).teacher])
def test_layer_maps_fit_the_teacher(name: str) -> None:
    recipe = load_recipe(name)
    depth = next(s.encoder.layers for s in load_recipe(recipe.teacher or "").stages if s.kind == "pretrain")
    for stage in recipe.stages:
        if stage.kind == "distill" and stage.student is not None and stage.student.layers is not None:
            assert len(layers.resolve(stage.student, depth)) < depth


def test_distilbert_is_as_published() -> None:
    """Weights, temperature and optimizer of the reference code's command (Sanh et al. 2019)."""
    corpus = load_recipe("replay-distilbert").stages[0]
    rows = {row.kind: row for row in corpus.objectives}
    assert {kind: row.weight for kind, row in rows.items()} == {"soft_targets": 5, "masked_lm": 2, "cosine_hidden": 1}
    assert (rows["soft_targets"].temperature, rows["soft_targets"].on, rows["soft_targets"].positions) == (
        2,
        "vocabulary",
        "all",
    )
    assert corpus.masking.strategy == "distilbert"
    assert (corpus.masking.probability, corpus.masking.mask, corpus.masking.random) == (0.15, 0.8, 0.1)
    plan = corpus.training
    assert (plan.learning_rate, plan.betas, plan.eps, plan.weight_decay, plan.warmup, plan.clip_norm) == (
        5e-4,
        (0.9, 0.98),
        1e-6,
        0,
        0.05,
        5,
    )
    kept = layers.resolve(corpus.student, 6)
    assert kept == [1, 3, 5]  # every other one; like the published 0 2 4 7 9 11 it keeps the last
    assert corpus.student.init == "teacher"


def test_distilbert_trains_student_and_control_from_the_same_layers_of_the_teacher() -> None:
    recipe = load_recipe("distilbert")
    (task,) = recipe.stages
    assert (task.level, task.control, task.use_unlabelled) == ("task_specific", True, "auto")
    assert (task.student.init, task.student.head) == ("teacher", "teacher")
    assert layers.resolve(task.student, 4) == [1, 3]
    assert recipe.data is not None
    assert recipe.data.labelled_rows == 1000


def test_the_wheel_ships_the_recipes() -> None:
    import tomllib

    config = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    included = config["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {"recipes": "compress/_recipes"}


def _same_source(one, other) -> bool:
    return one.data.source == other.data.source


def test_what_no_measurement_supports_is_marked_and_listed_last() -> None:
    entries = list_recipes()
    marked = [entry.name for entry in entries if entry.experimental]
    assert [entry.name for entry in entries][-len(marked) :] == marked
    unmeasured = {
        "contrastive",
        "decoupled",
        "geometry",
        "pretrain-electra",
        "pretrain-further",
        "self-distill",
        "q8bert",
        "pkd",
        "minilmv2",
    }
    unmeasured |= {"minilm", "multi-teacher", "replay-tinybert", "tinybert", "tinybert-task"}
    unmeasured |= {
        "share-general",
        "share-gradual",
        "share-pull",
        "embed-distil",
        "embed-vectors",
        "embed-matryoshka",
        "rerank-distil",
        "text-distil",
    }
    assert unmeasured | {"drop-tokens", "prune-width-l0", "prune-width-movement"} == set(marked)


def test_the_recipe_of_a_command_is_not_called_distillation_for_its_recovery_training() -> None:
    """What --no-recover makes was not distilled."""
    kinds = {path.parent.name for path in registry.ROOT.glob("stages/*/flags.py")} - {"shared"}
    tables = [importlib.import_module(f"compress.stages.{kind}.flags").TABLE for kind in sorted(kinds)]
    called = {table.kind for table in tables if load_recipe(table.recipe).method == "distill"}
    assert called == {"distill"}


def test_the_mark_changes_no_hash() -> None:
    """Runs that were made before a recipe was marked go on."""
    recipe = load_recipe("geometry")
    assert recipe.hash() == recipe.model_copy(update={"experimental": False}).hash()


def test_texts_are_timed_by_default_and_change_no_hash() -> None:
    """Stages measure latency on 128 tokens then, so runs whose recipes said so go on."""
    recipe = load_recipe("geometry")
    assert recipe.evaluation.latency.length is None
    assert recipe.hash() == load_recipe("geometry", [parse_override("evaluation.latency.length=128")]).hash()
    assert recipe.hash() != load_recipe("geometry", [parse_override("evaluation.latency.length=64")]).hash()
