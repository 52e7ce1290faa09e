"""`compress quantize`: what its flags mean in a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import get_args

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.encoder.schemes import SchemeName
from compress.errors import UserError, did_you_mean
from compress.pipeline import run_recipe
from compress.recipe import Recipe, load_recipe

KIND = RECIPE = "quantize"


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. floats: patterns of modules that stay float."""

    model: str | None
    scheme: str | None
    max_drop: float | None
    floats: Sequence[str]
    rows: int | None
    sensitivity: bool


def quantize(wanted: Wanted, options: RunOptions) -> None:
    """Quantize, measure and tell. Raises UserError for flags that do not fit."""
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    name = options.recipe or RECIPE
    run_recipe(name, asked(name, wanted, options), console, verb=KIND)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first quantize stage. Raises UserError."""
    # Before --set, which is the more exact: it has the last word.
    exact = [o for o in options.overrides if o.origin.startswith("--set ")]
    others = [o for o in options.overrides if not o.origin.startswith("--set ")]
    recipe = load_recipe(name, overrides=others)
    place = quantizing(recipe)
    stage = f"stages.{place}."
    said = [] if wanted.model is None else [Override("teacher", wanted.model, f"MODEL {wanted.model}")]
    if wanted.scheme is not None:
        if wanted.scheme not in (known := get_args(SchemeName)):
            raise UserError(
                f"unknown scheme '{wanted.scheme}'", where="--scheme", do=did_you_mean(wanted.scheme, known)
            )
        said.append(Override(f"{stage}scheme", wanted.scheme, f"--scheme {wanted.scheme}"))
    if wanted.floats:
        rules = [rule.model_dump(mode="json") for rule in recipe.stages[place].rules]
        rules += [{"pattern": pattern} for pattern in wanted.floats]
        said.append(Override(f"{stage}rules", rules, f"--float {wanted.floats[0]}"))
    if wanted.max_drop is not None:
        said.append(Override(f"{stage}max_drop", wanted.max_drop, f"--max-drop {wanted.max_drop:g}"))
    if wanted.rows is not None:
        said.append(Override(f"{stage}rows", wanted.rows, f"--rows {wanted.rows}"))
    if not wanted.sensitivity:
        said.append(Override(f"{stage}sensitivity", False, "--no-sensitivity"))
    return dataclasses.replace(options, overrides=(*others, *said, *exact))


def quantizing(recipe: Recipe) -> int:
    """The place of the recipe's first stage that quantizes. Raises UserError when it has none."""
    for place, stage in enumerate(recipe.stages):
        if stage.kind == KIND:
            return place
    kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages))
    raise UserError(f"recipe {recipe.name} has no {KIND} stage", where="--recipe", why=f"its stages: {kinds}")
