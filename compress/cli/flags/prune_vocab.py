"""`compress prune-vocab`: what its flags mean in a recipe."""

from __future__ import annotations

from dataclasses import dataclass

from compress.cli.flags import shared as flags
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.recipe import load_recipe
from compress.stages.prune_vocab.spec import HOW

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
    console, name = flags.listening(options), options.recipe or RECIPE
    flags.run(name, asked(name, wanted, options), console, verb=KIND)


def asked(name: str, wanted: Wanted, options: RunOptions) -> RunOptions:
    """The options with what the command's own flags say of the recipe's first prune_vocab stage. Raises UserError."""
    others = flags.without_set(options)
    recipe = load_recipe(name, overrides=[o for o in others if not o.path.startswith("corpus.")])
    stage, said = f"stages.{flags.first_stage(recipe, KIND)}.", flags.model_said(wanted.model)
    said += _amount(wanted, stage)
    corpus = next((o.origin for o in others if o.path == "corpus.source"), None)
    if corpus is not None:
        said.append(Override(f"{stage}text", "corpus", corpus))
    if wanted.pretrained:
        if corpus is None and recipe.corpus is None:
            raise UserError("a pretrained model has no labelled data", where="--pretrained", do="give --corpus TEXT")
        said.append(Override(f"{stage}level", "general", "--pretrained"))
        said.append(Override(f"{stage}text", "corpus", "--pretrained"))
    if wanted.characters is not None:
        said.append(Override(f"{stage}characters", wanted.characters, f"--characters {wanted.characters}"))
    return flags.with_flags(options, said)


def _amount(wanted: Wanted, stage: str) -> list[Override]:
    """How much is kept, in place of what the recipe says."""
    given = flags.one_of({key: getattr(wanted, key) for key in HOW}, FLAGS, "each says how much is kept")
    if given is None:
        return []
    key, value = given
    origin = f"{FLAGS[key]} {value:g}"
    return [Override(f"{stage}{name}", value if name == key else None, origin) for name in HOW]
