"""`compress prune-vocab`: what its flags mean in a recipe."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.pipeline import run_recipe
from compress.prune_vocab.spec import HOW
from compress.recipe import load_recipe

KIND, RECIPE = "prune_vocab", "prune-vocab"
FLAGS = {"coverage": "--coverage", "min_count": "--min-count", "size": "--size"}


@dataclass(frozen=True)
class Wanted:
    """The command's own flags; None where one was not given. pretrained: the model has no task."""

    model: str | None
    coverage: float | None
    min_count: int | None
    size: int | None
    characters: str | None
    pretrained: bool


def prune_vocab(wanted: Wanted, options: RunOptions) -> None:
    """Cut, measure and tell. Raises UserError for flags that do not fit."""
    console = Console(quiet=options.quiet, json=options.json)
    console.listen()
    name = options.recipe or RECIPE
    run_recipe(name, asked(name, wanted, options), console, verb=KIND)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first prune_vocab stage. Raises UserError."""
    # Before --set, which is the more exact: it has the last word.
    exact = [o for o in options.overrides if o.origin.startswith("--set ")]
    others = [o for o in options.overrides if not o.origin.startswith("--set ")]
    recipe = load_recipe(name, overrides=[o for o in others if not o.path.startswith("corpus.")])
    places = [place for place, stage in enumerate(recipe.stages) if stage.kind == KIND]
    if not places:
        kinds = ", ".join(dict.fromkeys(stage.kind for stage in recipe.stages))
        raise UserError(f"recipe {recipe.name} has no {KIND} stage", where="--recipe", why=f"its stages: {kinds}")
    stage = f"stages.{places[0]}."
    said = [] if wanted.model is None else [Override("teacher", wanted.model, f"MODEL {wanted.model}")]
    said += _amount(wanted, stage)
    corpus = next((o.origin for o in others if o.path == "corpus.source"), None)
    if corpus is not None:
        said.append(Override(f"{stage}text", "corpus", corpus))
    if wanted.pretrained:
        if corpus is None and recipe.corpus is None:
            raise UserError("a pretrained model has no labelled data", where="--pretrained", do="give --corpus TEXT")
        said += [Override(f"{stage}{key}", "corpus", "--pretrained") for key in ("level", "text")]
    if wanted.characters is not None:
        said.append(Override(f"{stage}characters", wanted.characters, f"--characters {wanted.characters}"))
    return dataclasses.replace(options, overrides=(*others, *said, *exact))


def _amount(wanted: Wanted, stage: str) -> list[Override]:
    """How much is kept, in place of what the recipe says."""
    given = {key: value for key in HOW if (value := getattr(wanted, key)) is not None}
    if not given:
        return []
    if len(given) > 1:
        flags = " and ".join(FLAGS[key] for key in given)
        raise UserError(f"{flags} together", why="each says how much is kept", do="give one of them")
    (key, value), *_ = given.items()
    origin = f"{FLAGS[key]} {value:g}"
    return [Override(f"{stage}{name}", value if name == key else None, origin) for name in HOW]
