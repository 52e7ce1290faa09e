"""`compress factorize`: what its flags mean in a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from compress import registry
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError, did_you_mean
from compress.factorize.stage import METHODS
from compress.pipeline import run_recipe
from compress.recipe import load_recipe
from compress.repeats import run_seeds

KIND, DEFAULT = "factorize", "factorize"
FLAGS = {"ratio": "--ratio", "rank": "--rank", "megabytes": "--mb"}


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given."""

    model: str | None
    ratio: float | None
    rank: int | None
    megabytes: float | None
    method: str | None
    allocation: str | None
    only_faster: bool
    heal: bool
    seeds: int | None


def factorize(wanted: Wanted, options: RunOptions) -> None:
    """Split, heal, measure and tell. Raises UserError for flags that do not fit."""
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    name, verb = options.recipe or DEFAULT, None if wanted.heal else KIND
    options = asked(name, wanted, options)
    if wanted.seeds is not None:
        run_seeds(name, options, console, wanted.seeds, verb=verb, inputs={})
        return
    run_recipe(name, options, console, verb=verb)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first stage that splits. Raises UserError."""
    # The flags come before --set, which is the more exact: it has the last word.
    exact = [o for o in options.overrides if o.origin.startswith("--set ")]
    others = [o for o in options.overrides if not o.origin.startswith("--set ")]
    recipe = load_recipe(name, overrides=others)
    places = [place for place, stage in enumerate(recipe.stages) if stage.kind == KIND]
    if not places:
        kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages))
        raise UserError(f"recipe {recipe.name} has no factorize stage", where="--recipe", why=f"its stages: {kinds}")
    stage = f"stages.{places[0]}."
    said = [] if wanted.model is None else [Override("teacher", wanted.model, f"MODEL {wanted.model}")]
    said += _target(wanted, stage)
    if wanted.method is not None:
        known = registry.parts(METHODS)
        if wanted.method not in known:
            raise UserError(
                f"unknown method '{wanted.method}'", where="--method", do=did_you_mean(wanted.method, known)
            )
        said.append(Override(f"{stage}method", {"kind": wanted.method}, f"--method {wanted.method}"))
    if wanted.allocation is not None:
        if wanted.rank is not None:
            raise UserError("ranks that are named are not spread", where="--allocation", do="leave --rank or this out")
        said.append(Override(f"{stage}allocation", wanted.allocation, f"--allocation {wanted.allocation}"))
    if wanted.only_faster:
        said.append(Override(f"{stage}only_faster", True, "--only-faster"))
    return dataclasses.replace(options, overrides=(*others, *said, *exact))


def _target(wanted: Wanted, stage: str) -> list[Override]:
    """The one target that was given takes the place of the recipe's. Raises UserError."""
    given: dict[str, Any] = {key: value for key in FLAGS if (value := getattr(wanted, key)) is not None}
    if not given:
        return []
    if len(given) > 1:
        flags = " and ".join(FLAGS[key] for key in given)
        raise UserError(f"{flags} together", why="each says how much stays", do="give one of them")
    ((key, value),) = given.items()
    origin = f"{FLAGS[key]} {value:g}"
    if value <= 0 or (key == "ratio" and value >= 1):
        allowed = "a share between 0 and 1, e.g. 0.5" if key == "ratio" else "a number above 0"
        raise UserError(f"{value:g} is not possible", where=FLAGS[key], do=f"give {allowed}")
    return [Override(f"{stage}{one}", value if one == key else None, origin) for one in FLAGS]
