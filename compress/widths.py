"""`compress prune-width`: what its flags mean in a recipe."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from compress import registry
from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError, did_you_mean
from compress.pipeline import run_recipe
from compress.prune_width.spec import BUDGETS, COUNTS, WIDTHS
from compress.prune_width.stage import PACKAGE
from compress.recipe import Recipe, load_recipe
from compress.repeats import run_seeds

KIND, DEFAULT = "prune_width", "prune-width"
FLAGS = {"keep_feed_forward": "--keep-ffn"}


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. steps: cuts, with a recovery after each."""

    model: str | None
    keep_heads: str | None
    keep_feed_forward: str | None
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
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    name = options.recipe or DEFAULT
    options = asked(name, wanted, options)
    if wanted.seeds is not None:
        run_seeds(name, options, console, wanted.seeds, verb=wanted.verb, inputs={})
        return
    run_recipe(name, options, console, verb=wanted.verb)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe. Raises UserError."""
    # The flags come before --set, which is the more exact: it has the last word.
    exact = [o for o in options.overrides if o.origin.startswith("--set ")]
    others = [o for o in options.overrides if not o.origin.startswith("--set ")]
    place = cutting(load_recipe(name, overrides=others))
    said = [] if wanted.model is None else [Override("teacher", wanted.model, f"MODEL {wanted.model}")]
    said += _targets(wanted, f"stages.{place}.")
    if wanted.uneven:
        said.append(Override(f"stages.{place}.uneven", True, "--uneven"))
    if wanted.importance is not None:
        row = {"kind": importance_kind(wanted.importance)}
        said.append(Override(f"stages.{place}.importance", row, f"--importance {wanted.importance}"))
    made = dataclasses.replace(options, overrides=(*others, *said, *exact))
    if wanted.steps is None:
        return made
    if not wanted.recover:
        raise UserError("recovers between steps", where="--steps", do="leave out --no-recover, or --steps")
    rows = schedule(load_recipe(name, overrides=made.overrides), wanted.steps)
    more = Override("stages", rows, f"--steps {wanted.steps}")
    return dataclasses.replace(made, overrides=(*made.overrides, more))


def cutting(recipe: Recipe) -> int:
    """The place of the recipe's first stage that cuts. Raises UserError when it has none."""
    for place, stage in enumerate(recipe.stages):
        if stage.kind == KIND:
            return place
    kinds = ", ".join(dict.fromkeys(s.kind for s in recipe.stages))
    raise UserError(f"recipe {recipe.name} has no {KIND} stage", where="--recipe", why=f"its stages: {kinds}")


def importance_kind(name: str) -> str:
    """The file of an importance that may be written with dashes. Raises UserError."""
    known = registry.parts(PACKAGE)
    kind = name.replace("-", "_")
    if kind not in known:
        names = [one.replace("_", "-") for one in known]
        raise UserError(f"unknown importance '{name}'", where="--importance", do=did_you_mean(name, names))
    return kind


def _targets(wanted: Wanted, stage: str) -> Iterator[Override]:
    """What was asked for takes the place of all that the recipe asks for."""
    keys = (*COUNTS, *WIDTHS, *BUDGETS)
    given: dict[str, Any] = {key: getattr(wanted, key) for key in keys if getattr(wanted, key) is not None}
    flags = {key: FLAGS.get(key, "--" + key.replace("_", "-")) for key in given}
    for key, value in given.items():
        if key == "ratio" and not 0 < value < 1:
            raise UserError(f"{value:g} is not between 0 and 1", where="--ratio", do="give the share that goes, as 0.5")
        if key in BUDGETS and value <= 0:
            raise UserError(f"{value:g} is not possible", where=flags[key], do="give a number above 0")
        if key in WIDTHS and value < 1:
            raise UserError(f"{value} is not possible", where=flags[key], do="give a number from 1")
        if key in COUNTS:
            given[key] = numbers(value, flags[key])
    budgets = [flags[key] for key in given if key in BUDGETS]
    counts = [flags[key] for key in given if key in COUNTS]
    if len(budgets) > 1 or (budgets and counts):
        raise UserError(
            f"{' and '.join(budgets + counts)} together",
            why="each says how many heads and neurons go",
            do="give one of them",
        )
    if not given:
        return
    origin = " ".join(flags.values())
    yield from (Override(f"{stage}{key}", None, origin) for key in keys if key not in given)
    for key, value in given.items():
        yield Override(f"{stage}{key}", value, flags[key])


def numbers(text: str, flag: str) -> int | list[int]:
    """`6` → 6, `6,4` → [6, 4]. Raises UserError."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise UserError("not a list of whole numbers", where=f"{flag} {text}", do=f"e.g. {flag} 6,6,4") from None
    return found[0] if len(found) == 1 else found


def schedule(recipe: Recipe, steps: int) -> list[dict[str, Any]]:
    """The stages of the recipe with its cut, and what follows it, in so many steps along a cubic curve, which takes
    most at first (Zhu and Gupta, arXiv 1710.01878)."""
    place = cutting(recipe)
    rows = [stage.model_dump(mode="json") for stage in recipe.stages]
    rest = rows[place + 1 :]
    if any(row["kind"] == KIND for row in rest):
        raise UserError(f"recipe {recipe.name} cuts several times already", where="--steps", do="leave it out")
    made = rows[:place]
    for step in range(1, steps + 1):
        made += [{**rows[place], "way": 1 - (1 - step / steps) ** 3}, *rest]
    return made
