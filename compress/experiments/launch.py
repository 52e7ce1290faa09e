"""Runs a recipe as often as was asked for: once, with several seeds, for every combination of a sweep, or both."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import UserError
from compress.experiments.seeds import run_seeds
from compress.experiments.sweep import run_sweep
from compress.recipe import LoadedRecipe
from compress.run import RunReport, run_recipe
from compress.run.jobs import require_cluster, share_parts
from compress.run.selection import Selection


def launch(
    loaded: LoadedRecipe, options: RunOptions, console: Console, *, seeds: int | None, verb: str | None,
    inputs: Mapping[str, Path],
) -> RunReport | None:  # fmt: skip
    """Run it; the report where that was one run, None elsewhere and after a dry run. verb, inputs: as of `run_recipe`.

    Raises UserError for options that do not fit, and what a run raises.
    """
    if loaded.recipe.sweep is not None or seeds is not None:
        require_measured(Selection.of(loaded.recipe, verb, options.chain), "sweep" if seeds is None else "--seeds")
    if loaded.recipe.sweep is not None:
        require_no_push(options, "a sweep makes several models")
        run_sweep(loaded, options, console, seeds=seeds, verb=verb, inputs=inputs)
    elif seeds is not None:
        require_no_push(options, "--seeds makes several models")
        run_seeds(loaded, options, console, seeds, verb=verb, inputs=inputs)
    else:
        share = None
        if options.workers is not None or options.on is not None:
            stages = loaded.recipe.stages
            if not any(stage.shares_work() for stage in stages):
                cached = next((i for i, stage in enumerate(stages) if hasattr(stage, "cache")), None)
                more = "" if cached is None else f", set a teacher cache (stages.{cached}.cache)"
                do = f"add --seeds N or --sweep KEY=V1,V2{more}, or remove it"
                require_no_workers(options, "this command makes one run", do)
            share = share_parts
            if not options.dry_run:
                require_cluster(options)
        return run_recipe(loaded.recipe, options, console, verb=verb, inputs=inputs, share=share)
    return None


def require_measured(selection: Selection, where: str) -> None:
    """Raise UserError where several runs would leave nothing to compare."""
    if selection.last.answers_task():
        return
    what = f"the last stage, {selection.last.kind.replace('_', '-')}, makes no model for a task"
    raise UserError(
        "the runs have no figures to compare", where=where, why=what, do="run a recipe that ends with one for a task"
    )


def require_no_push(options: RunOptions, why: str) -> None:
    """Raise UserError where --push is given to a command that does not make exactly one model."""
    if options.push is not None:
        do = "remove --push and push one model with compress push"
        raise UserError("needs a command that makes one model", where="--push", why=why, do=do)


def require_no_workers(options: RunOptions, why: str, do: str = "remove it") -> None:
    """Raise UserError where several runs at once are asked of a command that makes one."""
    flag = "--workers" if options.workers is not None else "--on"
    if options.workers is not None or options.on is not None:
        raise UserError("is for several runs", where=flag, why=why, do=do)
