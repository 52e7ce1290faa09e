"""`compress sparsify`: what its flags mean in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.encoder.config.sparsity import PATTERN
from compress.errors import UserError
from compress.recipe import Recipe, load_recipe
from compress.stages.sparsify.stage import METHODS

KIND, DEFAULT = "sparsify", "sparsify"


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. steps: of recovery."""

    model: str | None
    pattern: str | None
    method: str | None
    steps: int | None
    recover: bool
    seeds: int | None


def sparsify(wanted: Wanted, options: RunOptions) -> None:
    """Cut, recover, measure and tell. Raises UserError for flags that do not fit."""
    console, name = flags.listening(options), options.recipe or DEFAULT
    verb = None if wanted.recover else KIND
    flags.run(name, asked(name, wanted, options), console, verb=verb, seeds=wanted.seeds)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first stage that sparsifies. Raises
    UserError."""
    recipe = load_recipe(name, overrides=flags.without_set(options))
    place, said = flags.first_stage(recipe, KIND), flags.model_said(wanted.model)
    if wanted.pattern is not None:
        if wanted.pattern != PATTERN:
            raise UserError(
                f"unknown pattern '{wanted.pattern}'", where="--pattern", why="GPUs skip the zeros of no other",
                do=f"use {PATTERN}",
            )  # fmt: skip
        said.append(Override(f"stages.{place}.sparsity", PATTERN, f"--pattern {PATTERN}"))
    if wanted.method is not None:
        row = {"kind": flags.part_kind(METHODS, wanted.method, "--method")}
        said.append(Override(f"stages.{place}.method", row, f"--method {wanted.method}"))
    if wanted.steps is not None:
        said += _steps(recipe, place, wanted)
    return flags.with_flags(options, said)


def _steps(recipe: Recipe, place: int, wanted: Wanted) -> list[Override]:
    """So many steps for the training that follows."""
    if not wanted.recover:
        raise UserError("there is no recovery to take steps", where="--steps", do="leave out --no-recover, or --steps")
    after = [i for i in range(place + 1, len(recipe.stages)) if hasattr(recipe.stages[i], "training")]
    if not after:
        raise UserError(f"recipe {recipe.name} trains nothing after it sparsifies", where="--steps", do="leave it out")
    training, origin = f"stages.{after[0]}.training", f"--steps {wanted.steps}"
    return [Override(f"{training}.epochs", None, origin), Override(f"{training}.steps", wanted.steps, origin)]
