"""Pretrain an encoder from random weights on plain text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import resolve, stage_flags
from compress.cli._help import Command
from compress.cli._verbs import run_stages
from compress.cli.options import shared
from compress.stages.pretrain.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


@click.command(cls=Command)
@shared("recipe", "corpus", "training_compute", "deterministic", "output", "push", "store", "experiment")
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder of the tokenizer.")
@stage_flags(TABLE)
def command(options: RunOptions, tokenizer: Path | None, given: dict[str, Any]) -> None:
    """Pretrain an encoder from random weights on plain text: masked LM, with NSP, SOP or neither.

    \b
      compress tokenizer --corpus TEXT --output runs/tok
      compress pretrain --tokenizer runs/tok/model --corpus TEXT
      torchrun --nproc-per-node 4 -m compress pretrain --tokenizer runs/tok/model --corpus TEXT
    """

    def load() -> LoadedRecipe:
        return resolve(TABLE, options.recipe or TABLE.recipe, None, given, options)

    run_stages(options, load, TABLE.kind, tokenizer=tokenizer)
