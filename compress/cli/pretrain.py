"""Pretrain an encoder on plain text: a new one, or a checkpoint further."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import and_then, resolve, stage_flags
from compress.cli._help import Command
from compress.cli._lengths import fit_blocks
from compress.cli._verbs import run_stages
from compress.cli.options import shared
from compress.errors import UserError
from compress.stages.pretrain.flags import FURTHER, TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe, Recipe


@click.command(cls=Command)
@shared("recipe", "model", "corpus", "training_compute", "deterministic", "output", "push", "store", "experiment")
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder of the tokenizer.")
@stage_flags(TABLE)
def command(options: RunOptions, tokenizer: Path | None, given: dict[str, Any]) -> None:
    """Pretrain an encoder on plain text: masked LM, with NSP, SOP or neither.

    MODEL is pretrained further on your text, with its own tokenizer; `compress finetune` then trains a task head on
    it:

    \b
      compress pretrain FOLDER --corpus TEXT

    Without MODEL, a new encoder starts from random weights, for a tokenizer that you trained:

    \b
      compress tokenizer --corpus TEXT --output runs/tok
      compress pretrain --tokenizer runs/tok/model --corpus TEXT
      torchrun --nproc-per-node 4 -m compress pretrain --tokenizer runs/tok/model --corpus TEXT
    """

    def load() -> LoadedRecipe:
        model = next((change.value for change in options.overrides if change.path == "model"), None)
        name = options.recipe or TABLE.recipe_for({"model": model})
        if name == FURTHER and not (options.resume or options.print_recipe or _names_text(options)):
            raise UserError("no text was given", where="--corpus", do="compress pretrain FOLDER --corpus TEXT")
        found = resolve(TABLE, name, None, given, options)
        if model is None:
            return found
        check_further(found.recipe, name, tokenizer)
        return and_then(found, fit_blocks(found, {one.path: one.value for one in found.overrides}))

    run_stages(options, load, TABLE.kind, tokenizer=tokenizer)


def _names_text(options: RunOptions) -> bool:
    return any(change.path in ("corpus", "corpus.source") for change in options.overrides)


def check_further(recipe: Recipe, name: str, tokenizer: Path | None) -> None:
    """Raise UserError for what cannot be combined with MODEL: a tokenizer, and a recipe that builds a new encoder."""
    if tokenizer is not None:
        raise UserError("MODEL has its own tokenizer", where="--tokenizer", do="remove --tokenizer, or MODEL")
    for index, stage in enumerate(recipe.stages):
        if stage.kind == TABLE.kind and stage.starts_from() == "random":
            raise UserError(
                f"recipe {name} pretrains a new encoder, and MODEL would not be read", where=f"stages.{index}.encoder",
                do=f"use --recipe {FURTHER}, add --set stages.{index}.encoder=null, or remove MODEL",
            )  # fmt: skip
