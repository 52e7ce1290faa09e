"""Run all stages of a recipe in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import stage_flags
from compress.cli._help import Command
from compress.cli._types import RecipeName
from compress.cli._verbs import run_stages
from compress.cli.options import shared
from compress.stages.shared.flags import GENERAL_TEACHER, RECOVERY, SEEDS, Table

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


TABLE = Table(kind="", recipe="", flags=(GENERAL_TEACHER, *RECOVERY, SEEDS), demo=False)
"""The general teacher, and flags that change all stages of a recipe that train."""


@click.command(cls=Command)
@click.argument("name", metavar="RECIPE", type=RecipeName())
@click.option("--until", metavar="STAGE", help="Last stage to run: its name, kind or number; --resume continues.")
@click.option("--from", "begin", metavar="STAGE", help="Rerun this stage and those after it; reuse the others.")
@click.option("--no-cache", is_flag=True, help="Rerun every stage; use no result of earlier runs.")
@shared(
    "overrides", "print_recipe", "model", "teacher", "data", "unlabelled", "corpus", "training_compute",
    "deterministic", "onnx", "output", "several", "push", "store", "experiment",
)  # fmt: skip
@stage_flags(TABLE)
def command(
    options: RunOptions, name: str, until: str | None, begin: str | None, no_cache: bool, given: dict[str, Any]
) -> None:
    """Run all stages of RECIPE in order, and report the cost and gain of each.

    \b
      compress run tiny-cpu --model FOLDER --data DATA
      compress run tiny-cpu --model FOLDER --data DATA --until 1-prune_vocab
      compress run ./chain.yaml --from quantize

    Each stage is an MLflow run below one parent run. A stage is reused from an earlier run with the same input, data,
    settings and seed, in any folder; so after a change of the last stage only that stage runs. --model is the
    model that the first stage starts from, and the teacher unless --teacher is given.

    --epochs, --steps, --time, --learning-rate, --batch-size and --temperature change every stage that trains,
    --augment every stage that distils on the task. To change one of them, name it:

    \b
      compress run tiny-cpu --model FOLDER --data DATA --set stages.distill.training.epochs=2
    """
    import dataclasses

    from compress.contracts import ChainOptions
    from compress.errors import UserError

    if begin is not None and no_cache:
        why = "--from reuses the stages before it"
        raise UserError("does not work with --from", where="--no-cache", why=why, do="remove one of the two")
    options = dataclasses.replace(options, chain=ChainOptions(until, begin, not no_cache))
    seeds, general = given["seeds"], given["general_teacher"]
    run_stages(options, lambda: _resolved(name, options, given), None, seeds=seeds, general_teacher=general)


def _resolved(name: str, options: RunOptions, given: dict[str, Any]) -> LoadedRecipe:
    """The recipe with all flags. Raises UserError for training flags of a recipe that trains nothing."""
    from compress.cli._flags import and_then, training_changes, with_edits, without_set
    from compress.cli._lengths import read_as_long

    loaded = _with_teacher(name, options)
    plain = loaded.with_overrides(without_set(loaded.overrides))
    made = training_changes(TABLE, name, plain, given)
    found = loaded.with_overrides(with_edits(loaded.overrides, made)) if made else loaded
    return and_then(found, read_as_long(found, name, {one.path: one.value for one in found.overrides}))


def _with_teacher(name: str, options: RunOptions) -> LoadedRecipe:
    """The model that the recipe starts from also teaches, in place of the teacher that the recipe names, unless
    --teacher names another."""
    from compress.cli._flags import with_edits, without_set
    from compress.recipe import LoadedRecipe
    from compress.stages.shared.flags import Edit

    model = next((one.value for one in options.overrides if one.path == "model"), None)
    named = any(one.path in ("teacher", "teachers") and one.value is not None for one in options.overrides)
    loaded = LoadedRecipe.read(name, options.overrides)
    if model is None or named:
        return loaded
    recipe = loaded.with_overrides(without_set(options.overrides)).recipe
    if not recipe.stages[0].compresses or recipe.teachers is not None:
        return loaded
    return loaded.with_overrides(with_edits(options.overrides, [Edit("teacher", model, f"--model {model}")]))
