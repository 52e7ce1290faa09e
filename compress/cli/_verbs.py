"""What the stage commands share: run a recipe's stages of one kind and leave with its report."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


def run_stages(
    options: RunOptions,
    load: Callable[[], LoadedRecipe],
    verb: str | None,
    *,
    seeds: int | None = None,
    curve: tuple[str | None, str | None] | None = None,
    check: bool = False,
    **inputs: Path | None,
) -> None:
    """Run a recipe, `seeds` times; verb: only its stages of that kind.

    load: reads the recipe and applies the flags.  check: try it on a few examples instead. Under torchrun the first
    process does all that, the others train with it.
    """
    from compress.training.distributed import join_launched_team

    with join_launched_team(options.device) as team:
        if team is not None and not team.place.leads:
            from compress.run.workers import follow

            follow(team, options)
        _lead(options, load, verb, seeds, curve, check, inputs)


def _lead(
    options: RunOptions,
    load: Callable[[], LoadedRecipe],
    verb: str | None,
    seeds: int | None,
    curve: tuple[str | None, str | None] | None,
    check: bool,
    inputs: Mapping[str, Path | None],
) -> None:
    from compress.cli._flags import naming_flags, prints_recipe
    from compress.console import Console

    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    given = {name: path for name, path in inputs.items() if path is not None}
    if check:
        from compress.errors import UserError
        from compress.experiments.launch import require_no_push, require_no_workers
        from compress.experiments.overfit import check_recipe

        require_no_push(options, "--check saves no model")
        require_no_workers(options, "--check makes one short run")
        if seeds is not None:
            raise UserError("cannot be combined with --check", where="--seeds", do="remove one of the two")
        if curve is not None:
            raise UserError("cannot be combined with --check", where="--curve", do="remove one of the two")
        loaded = load()
        with naming_flags(loaded):
            check_recipe(loaded, options, console, verb=verb, inputs=given)
        return
    loaded = load()
    if prints_recipe(loaded, options, console):
        return
    from compress.run.jobs import hold_cluster

    if curve is not None:
        from compress.errors import UserError
        from compress.experiments.curve import LABELLED, UNLABELLED, Grid, parse_sizes, run_curve
        from compress.experiments.launch import require_no_push

        if seeds is not None:
            raise UserError("cannot be combined with --curve", where="--seeds", do="run --curve once for each --seed")
        if loaded.recipe.sweep is not None:
            raise UserError("cannot be combined with --curve", where="--sweep", do="remove one of the two")
        require_no_push(options, "--curve makes several models")
        labelled = parse_sizes(curve[0] or LABELLED, "--curve-labelled", least=1)
        unlabelled = parse_sizes(curve[1] or UNLABELLED, "--curve-unlabelled", least=0)
        with hold_cluster(options), naming_flags(loaded):
            run_curve(loaded, options, console, Grid(labelled, unlabelled), verb=verb, inputs=given)
        return
    from compress.experiments.launch import launch

    with hold_cluster(options), naming_flags(loaded):
        launch(loaded, options, console, seeds=seeds, verb=verb, inputs=given)
