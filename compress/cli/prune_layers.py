"""Remove layers of an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command
from compress.stages.prune_layers.flags import (
    ALL,
    PACKAGE,
    ROUND,
    TABLE,
    check_comparison,
    check_one,
    compares,
    repeat_stages,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from compress.console import Console
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe, Recipe
    from compress.run import RunReport


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Remove layers of MODEL.

    \b
      compress prune-layers FOLDER --keep 3 --data DATA

    MODEL is a folder, runs:/…, models:/…, or a recipe that makes one. Recovery training then distils MODEL into the
    result. The model is measured before, after pruning and after recovery training.

    \b
      compress prune-layers FOLDER --target-latency 5ms --criterion greedy-loss --data DATA --explain
      compress prune-layers FOLDER --criterion all --keep 5,4,3 --seeds 3 --data DATA
      compress prune-layers FOLDER --criterion cka,greedy-loss,uniform --keep 3 --random-subsets 8 --data DATA

    Criteria that need text only: cka, cka-clusters, block-influence, angular. That need labels: fisher, taylor,
    leave-one-out, greedy-loss, exhaustive, learned-gates. Baselines: uniform, first, last, random.
    """
    from compress.cli._flags import listening, run

    console, name = listening(options), options.recipe or TABLE.recipe
    if compares(given):
        _compare(name, model, given, options, console)
        return
    check_one(given)
    loaded = _resolve(name, model, given, options, console)
    report = run(loaded, options, console, verb=_verb(given), seeds=given["seeds"])
    if report is not None and given["explain"]:
        for line in list_reasons(loaded.recipe, report):
            console.result(line)


def _verb(given: dict[str, Any]) -> str | None:
    return TABLE.kind if given["no_recover"] else None


def _compare(name: str, model: str | None, given: dict[str, Any], options: RunOptions, console: Console) -> None:
    """Compare criteria at one or several numbers of layers."""
    from compress import registry
    from compress.cli._flags import first_stage, prints_recipe
    from compress.errors import UserError
    from compress.experiments.criteria import compare_criteria
    from compress.experiments.launch import require_no_push, require_no_workers
    from compress.stages.shared.flags import parse_numbers, part_kind

    check_comparison(given)
    require_no_push(options, "a criterion comparison makes several models")
    names = [one.strip() for one in given["criterion"].split(",")]
    kinds = registry.parts(PACKAGE)
    if given["criterion"] != ALL:
        kinds = dict.fromkeys(part_kind(PACKAGE, one, "--criterion", [ALL]) for one in names)
    depths = () if given["keep"] is None else parse_numbers(given["keep"], "--keep", "5,4,3")
    loaded = _resolve(name, model, {**given, "keep": None, "criterion": None}, options, console)
    if prints_recipe(loaded, options, console):
        return
    if loaded.recipe.sweep is not None:
        do = "remove one of the two"
        raise UserError("cannot be combined with a comparison of criteria", where="--sweep", do=do)
    if given["no_recover"]:
        require_no_workers(options, "with --no-recover, criteria are compared in this process")
    place = first_stage(loaded.recipe, TABLE.kind)
    compare_criteria(
        loaded, place, depths, given["seeds"] or 1, list(kinds), given["random_subsets"] or 0, _verb(given),
        not given["no_recover"], options, console,
    )  # fmt: skip


def _resolve(
    name: str, model: str | None, given: dict[str, Any], options: RunOptions, console: Console
) -> LoadedRecipe:
    from compress.cli._flags import and_then, first_stage, resolve
    from compress.stages.shared.flags import Edit

    made = resolve(TABLE, name, model, given, options)
    per_round = given["layers_per_round"]
    if per_round is None:
        return made
    recipe = made.recipe
    rows = repeat_stages(recipe, first_stage(recipe, TABLE.kind), per_round, _depth(recipe, options, console))
    return and_then(made, [Edit("stages", rows, f"{ROUND} {per_round}")])


def _depth(recipe: Recipe, options: RunOptions, console: Console) -> int:
    """Layers of the model to prune, made or not; of the models of a sweep, which must have equally many. Raises
    UserError."""
    from compress.errors import UserError

    depths = {name: _depth_of(name, recipe, options, console) for name in _list_models(recipe)}
    if len(set(depths.values())) > 1:
        why = ", ".join(f"{name}: {depth}" for name, depth in depths.items())
        raise UserError(
            "the models of the sweep differ in their number of layers", where=ROUND, why=why,
            do="run the command once for each model",
        )  # fmt: skip
    return next(iter(depths.values()))


def _list_models(recipe: Recipe) -> Sequence[str | None]:
    return (recipe.sweep or {}).get("teacher") or [recipe.teacher]


def _depth_of(name: str | None, recipe: Recipe, options: RunOptions, console: Console) -> int:
    from compress.errors import UserError
    from compress.modelfolder import folder as modelfolder
    from compress.recipe import TeacherRow
    from compress.run import Run
    from compress.run.teachers import teacher_folder, teacher_recipe

    if name is None:
        raise UserError("a model is required", where="MODEL", do="give the folder of a fine-tuned model")
    teacher = teacher_recipe(recipe, TeacherRow(model=name))
    if teacher is None:
        return modelfolder.inspect(teacher_folder(name)).config.depth
    planned = Run(teacher, options, console, None, {}).plan_shape(None, None)
    assert planned is not None
    return planned.depth


def list_reasons(recipe: Recipe, report: RunReport) -> list[str]:
    """Why each layer was removed, in order, from what the stages wrote."""
    from compress.run import work_folder
    from compress.stages.prune_layers.report import FATE, LAYERS
    from compress.storage import safe

    lines = []
    for index, stage in enumerate(recipe.stages):
        if stage.kind != TABLE.kind:
            continue
        table = safe.read_json(work_folder(report.folder, index, TABLE.kind) / LAYERS, 1 << 20)
        place, fate, why = (table["columns"].index(name) for name in ("layer", FATE, "why"))
        gone = sorted((row for row in table["data"] if row[why]), key=lambda row: int(row[fate].split()[1]))
        lines += [f"layer {row[place]} was removed: {row[why]}" for row in gone]
    return lines
