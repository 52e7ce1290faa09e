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
    from compress.cli._flags import prints_recipe, require_no_push
    from compress.console import Console
    from compress.run import run_recipe

    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    given = {name: path for name, path in inputs.items() if path is not None}
    if check:
        require_no_push(options, "--check saves no model")
        from compress.errors import UserError
        from compress.experiments.overfit import check_recipe

        if seeds is not None:
            raise UserError("cannot be combined with --check", where="--seeds", do="remove one of the two")
        if curve is not None:
            raise UserError("cannot be combined with --check", where="--curve", do="remove one of the two")
        check_recipe(load(), options, console, verb=verb, inputs=given)
        return
    loaded = load()
    if prints_recipe(loaded, options, console):
        return
    if curve is not None:
        from compress.errors import UserError
        from compress.experiments.curve import LABELLED, UNLABELLED, Grid, parse_sizes, run_curve

        if seeds is not None:
            raise UserError("cannot be combined with --curve", where="--seeds", do="run --curve once for each --seed")
        require_no_push(options, "--curve makes several models")
        labelled = parse_sizes(curve[0] or LABELLED, "--curve-labelled", least=1)
        unlabelled = parse_sizes(curve[1] or UNLABELLED, "--curve-unlabelled", least=0)
        run_curve(loaded, options, console, Grid(labelled, unlabelled), verb=verb, inputs=given)
        return
    if loaded.recipe.sweep is not None:
        from compress.errors import UserError
        from compress.experiments.sweep import run_sweep

        if seeds is not None:
            raise UserError(
                "a sweep already consists of several runs", where="--seeds", do="remove --seeds, or sweep over seed"
            )
        require_no_push(options, "a sweep makes several models")
        run_sweep(loaded, options, console, verb=verb, inputs=given)
        return
    if seeds is not None:
        from compress.experiments.seeds import run_seeds

        require_no_push(options, "--seeds makes several models")
        run_seeds(loaded, options, console, seeds, verb=verb, inputs=given)
        return
    run_recipe(loaded.recipe, options, console, verb=verb, inputs=given)
