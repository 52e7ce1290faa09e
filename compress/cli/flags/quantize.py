"""`compress quantize`: what its flags mean in a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.encoder.config.schemes import SchemeName
from compress.errors import UserError, did_you_mean
from compress.recipe import load_recipe

KIND = "quantize"
RECIPES = {"ptq": "quantize", "qat": "qat"}
"""--mode → the recipe where none is named."""


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. floats: patterns of modules that stay float."""

    model: str | None
    mode: Literal["ptq", "qat"] | None
    scheme: str | None
    max_drop: float | None
    floats: Sequence[str]
    rows: int | None
    sensitivity: bool
    seeds: int | None = None
    fall_back: str | None = None


def quantize(wanted: Wanted, options: RunOptions) -> None:
    """Quantize, train on where that is asked for, measure and tell. Raises UserError for flags that do not fit."""
    console, name = flags.listening(options), options.recipe or RECIPES[wanted.mode or "ptq"]
    verb = KIND if wanted.mode == "ptq" else None
    flags.run(name, asked(name, wanted, options), console, verb=verb, seeds=wanted.seeds)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first quantize stage. Raises UserError."""
    recipe = load_recipe(name, overrides=flags.without_set(options))
    place = flags.first_stage(recipe, KIND)
    if wanted.mode == "qat" and place == len(recipe.stages) - 1:
        do = "leave --recipe out, or name one with a distill stage behind it, such as qat"
        raise UserError(f"recipe {recipe.name} trains nothing that it quantized", where="--mode qat", do=do)
    stage, said = f"stages.{place}.", flags.model_said(wanted.model)
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
    if wanted.fall_back is not None:
        if wanted.max_drop is None and recipe.stages[place].max_drop is None:
            do = "give --max-drop POINTS as well"
            raise UserError("nothing falls back without a bound", where=f"--fall-back {wanted.fall_back}", do=do)
        said.append(Override(f"{stage}fall_back", wanted.fall_back, f"--fall-back {wanted.fall_back}"))
    if wanted.rows is not None:
        said.append(Override(f"{stage}rows", wanted.rows, f"--rows {wanted.rows}"))
    if not wanted.sensitivity:
        said.append(Override(f"{stage}sensitivity", False, "--no-sensitivity"))
    return flags.with_flags(options, said)
