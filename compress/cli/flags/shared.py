"""What the commands that change a model share: their own flags as overrides of a recipe, and the run that follows."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compress import registry
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError, did_you_mean
from compress.experiments.seeds import run_seeds
from compress.recipe import Recipe, current_kind
from compress.run import RunReport, run_recipe

_EXACT = "--set "


def listening(options: RunOptions) -> Console:
    """The console of a command, which hears the log from now on."""
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    return console


def run(
    name: str,
    options: RunOptions,
    console: Console,
    *,
    verb: str | None,
    seeds: int | None = None,
    inputs: Mapping[str, Path] | None = None,
) -> RunReport | None:
    """The recipe's stages of this kind (None: all of them), once or with so many seeds; None without a report."""
    if seeds is not None:
        run_seeds(name, options, console, seeds, verb=verb, inputs=inputs or {})
        return None
    return run_recipe(name, options, console, verb=verb, inputs=inputs)


def without_set(options: RunOptions) -> list[Override]:
    """The overrides but for those of --set, which say what they say whatever the other flags make of the recipe."""
    return [o for o in options.overrides if not o.origin.startswith(_EXACT)]


def with_flags(options: RunOptions, said: Sequence[Override]) -> RunOptions:
    """The options with what a command's own flags say: before --set, which is the more exact and has the last word."""
    exact = [o for o in options.overrides if o.origin.startswith(_EXACT)]
    return dataclasses.replace(options, overrides=(*without_set(options), *said, *exact))


def first_stage(recipe: Recipe, kind: str) -> int:
    """The place of the recipe's first stage of this kind. Raises UserError when it has none."""
    for place, stage in enumerate(recipe.stages):
        if stage.kind == kind:
            return place
    kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages))
    raise UserError(f"recipe {recipe.name} has no {kind} stage", where="--recipe", why=f"its stages: {kinds}")


def same_teacher(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Stages that are repeated, where nothing else is said all of them taught by the recipe's teacher: a model that was
    cut and recovered before is a worse one."""
    return [{**row, "taught_by": row["taught_by"] or "teacher"} if "taught_by" in row else {**row} for row in rows]


def model_said(model: str | None) -> list[Override]:
    """The argument MODEL: what is changed, and who teaches what it became."""
    return [] if model is None else [Override("teacher", model, f"MODEL {model}")]


def part_kind(package: str, name: str, flag: str, more: Sequence[str] = ()) -> str:
    """The file of a part that may be written with dashes. more: what else may be said there. Raises UserError."""
    known = registry.parts(package)
    kind = current_kind(package, name.replace("-", "_"), flag)
    if kind not in known:
        names = [one.replace("_", "-") for one in known]
        what = registry.noun(package)
        raise UserError(f"unknown {what} '{name}'", where=flag, do=did_you_mean(name, [*names, *more]))
    return kind


def one_of(given: Mapping[str, Any], flags: Mapping[str, str], why: str) -> tuple[str, Any] | None:
    """The one key that has a value, with it; None where none has. Raises UserError for several, by their flags."""
    found = {key: value for key, value in given.items() if value is not None}
    if len(found) > 1:
        raise UserError(f"{' and '.join(flags[key] for key in found)} together", why=why, do="give one of them")
    return next(iter(found.items()), None)


def numbers(text: str, flag: str, example: str) -> tuple[int, ...]:
    """`0,5` → (0, 5). Raises UserError."""
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError("not a list of whole numbers", where=f"{flag} {text}", do=f"e.g. {flag} {example}") from None
