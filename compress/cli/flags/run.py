"""`compress run`: what its flags mean for the stages of a recipe."""

from __future__ import annotations

import dataclasses

from compress.cli.flags import shared as flags
from compress.contracts import ChainOptions, Override, RunOptions
from compress.errors import UserError
from compress.recipe import load_recipe


def asked(name: str, options: RunOptions, until: str | None, begin: str | None, cached: bool) -> RunOptions:
    """The options with what the command's own flags say. The model that a chain starts from also teaches, in place of
    the teacher that the recipe names, unless --teacher names another. Raises UserError for flags that do not fit."""
    if begin is not None and not cached:
        raise UserError(
            "--from takes the stages before it from earlier runs", where="--no-cache", do="leave one of the two out"
        )
    options = dataclasses.replace(options, chain=ChainOptions(until, begin, cached))
    model = next((o.value for o in options.overrides if o.path == "model"), None)
    named = any(o.path in ("teacher", "teachers") and o.value is not None for o in options.overrides)
    if model is None or named:
        return options
    recipe = load_recipe(name, overrides=flags.without_set(options))
    if not recipe.stages[0].compresses or recipe.teachers is not None:
        return options
    return flags.with_flags(options, [Override("teacher", model, f"--model {model}")])
