"""`compress prune-width`: what its flags mean in a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.recipe import Recipe, load_recipe
from compress.stages.prune_width.spec import BUDGETS, COUNTS, WIDTHS
from compress.stages.prune_width.subject import PACKAGE

KIND, DEFAULT = "prune_width", "prune-width"
FLAGS = {"intermediate_size": "--keep-ffn"}


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. steps: cuts, with a recovery after each."""

    model: str | None
    keep_heads: str | None
    intermediate_size: str | None
    hidden: int | None
    head_width: int | None
    ratio: float | None
    target_params: float | None
    target_flops: float | None
    target_latency: float | None
    uneven: bool
    importance: str | None
    steps: int | None
    recover: bool
    seeds: int | None

    @property
    def verb(self) -> str | None:
        """Of the recipe's stages: those that cut alone, or all."""
        return None if self.recover else KIND


def prune_width(wanted: Wanted, options: RunOptions) -> None:
    """Cut, recover, measure and tell. Raises UserError for flags that do not fit."""
    console, name = flags.listening(options), options.recipe or DEFAULT
    flags.run(name, asked(name, wanted, options), console, verb=wanted.verb, seeds=wanted.seeds)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe. Raises UserError."""
    place = flags.first_stage(load_recipe(name, overrides=flags.without_set(options)), KIND)
    said = flags.model_said(wanted.model)
    said += _targets(wanted, f"stages.{place}.")
    if wanted.uneven:
        said.append(Override(f"stages.{place}.uneven", True, "--uneven"))
    if wanted.importance is not None:
        row = {"kind": flags.part_kind(PACKAGE, wanted.importance, "--importance")}
        said.append(Override(f"stages.{place}.importance", row, f"--importance {wanted.importance}"))
    made = flags.with_flags(options, said)
    if wanted.steps is None:
        return made
    if not wanted.recover:
        raise UserError("recovers between steps", where="--steps", do="leave out --no-recover, or --steps")
    rows = schedule(load_recipe(name, overrides=made.overrides), wanted.steps)
    more = Override("stages", rows, f"--steps {wanted.steps}")
    return dataclasses.replace(made, overrides=(*made.overrides, more))


def _targets(wanted: Wanted, stage: str) -> Iterator[Override]:
    """What was asked for takes the place of all that the recipe asks for."""
    keys = (*COUNTS, *WIDTHS, *BUDGETS)
    given: dict[str, Any] = {key: getattr(wanted, key) for key in keys if getattr(wanted, key) is not None}
    said_by = {key: FLAGS.get(key, "--" + key.replace("_", "-")) for key in given}
    for key, value in given.items():
        if key == "ratio" and not 0 < value < 1:
            raise UserError(f"{value:g} is not between 0 and 1", where="--ratio", do="give the share that goes, as 0.5")
        if key in BUDGETS and value <= 0:
            raise UserError(f"{value:g} is not possible", where=said_by[key], do="give a number above 0")
        if key in WIDTHS and value < 1:
            raise UserError(f"{value} is not possible", where=said_by[key], do="give a number from 1")
        if key in COUNTS:
            given[key] = _numbers(value, said_by[key])
    budgets = [said_by[key] for key in given if key in BUDGETS]
    counts = [said_by[key] for key in given if key in COUNTS]
    if len(budgets) > 1 or (budgets and counts):
        raise UserError(
            f"{' and '.join(budgets + counts)} together",
            why="each says how many heads and neurons go",
            do="give one of them",
        )
    if not given:
        return
    origin = " ".join(said_by.values())
    yield from (Override(f"{stage}{key}", None, origin) for key in keys if key not in given)
    for key, value in given.items():
        yield Override(f"{stage}{key}", value, said_by[key])


def _numbers(text: str, flag: str) -> int | list[int]:
    """`6` → 6, `6,4` → [6, 4]. Raises UserError."""
    found = flags.numbers(text, flag, "6,6,4")
    return found[0] if len(found) == 1 else list(found)


def schedule(recipe: Recipe, steps: int) -> list[dict[str, Any]]:
    """The stages of the recipe with its cut, and what follows it, in so many steps along a cubic curve, which takes
    most at first (Zhu and Gupta, arXiv 1710.01878)."""
    place = flags.first_stage(recipe, KIND)
    rows = [stage.model_dump(mode="json") for stage in recipe.stages]
    rest = flags.same_teacher(rows[place + 1 :])
    if any(row["kind"] == KIND for row in rest):
        raise UserError(f"recipe {recipe.name} cuts several times already", where="--steps", do="leave it out")
    made = rows[:place]
    for step in range(1, steps + 1):
        made += [{**rows[place], "schedule": 1 - (1 - step / steps) ** 3}, *rest]
    return made
