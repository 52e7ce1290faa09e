"""What the stage commands share: run a recipe's stages of one kind and leave with its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from compress.contracts import RunOptions


def run_stages(
    options: RunOptions,
    default: str,
    verb: str | None,
    *,
    seeds: int | None = None,
    check: bool = False,
    **inputs: Path | None,
) -> None:
    """Run the recipe that the options name (else `default`), `seeds` times; verb: only its stages of that kind.

    check: try it on a few examples instead. Under torchrun the first process does all that, the others train with it.
    """
    from compress.training.distributed import launched

    with launched(options.device) as team:
        if team is not None and not team.place.leads:
            from compress.run.workers import follow

            follow(team, options)
        _lead(options, default, verb, seeds, check, inputs)


def _lead(
    options: RunOptions,
    default: str,
    verb: str | None,
    seeds: int | None,
    check: bool,
    inputs: Mapping[str, Path | None],
) -> None:
    from compress.console import Console
    from compress.run import run_recipe

    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    given = {name: path for name, path in inputs.items() if path is not None}
    if check:
        from compress.errors import UserError
        from compress.experiments.overfit import check_recipe

        if seeds is not None:
            raise UserError("cannot be combined with --check", where="--seeds", do="remove one of the two")
        check_recipe(options.recipe or default, options, console, verb=verb, inputs=given)
        return
    from compress.recipe import load_recipe

    if load_recipe(options.recipe or default, overrides=options.overrides).sweep is not None:
        from compress.errors import UserError
        from compress.experiments.sweep import run_sweep

        if seeds is not None:
            raise UserError(
                "a sweep already consists of several runs", where="--seeds", do="remove --seeds, or sweep over seed"
            )
        run_sweep(options.recipe or default, options, console, verb=verb, inputs=given)
        return
    if seeds is not None:
        from compress.experiments.seeds import run_seeds

        run_seeds(options.recipe or default, options, console, seeds, verb=verb, inputs=given)
        return
    run_recipe(options.recipe or default, options, console, verb=verb, inputs=given)
