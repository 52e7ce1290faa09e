"""Pretrain an encoder from random weights on plain text."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._flags import as_given
from compress.cli._verbs import run_stages
from compress.cli.options import Command, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@shared("recipe", "corpus", "compute", "output", "store", "experiment")
@click.option("--tokenizer", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder of the tokenizer.")
def command(options: RunOptions, tokenizer: Path | None) -> None:
    """Pretrain an encoder from random weights on plain text: masked LM, with NSP, SOP or neither.

    \b
      compress tokenizer --corpus TEXT --output runs/tok
      compress pretrain --tokenizer runs/tok/model --corpus TEXT
      torchrun --nproc-per-node 4 -m compress pretrain --tokenizer runs/tok/model --corpus TEXT
    """
    run_stages(options, as_given("teacher", options), "pretrain", tokenizer=tokenizer)
