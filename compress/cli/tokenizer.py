"""Train a tokenizer on plain text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._flags import as_given
from compress.cli._help import Command
from compress.cli._verbs import run_stages
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@shared("recipe", "corpus", "output", "store", "experiment")
def command(options: RunOptions) -> None:
    """Train a tokenizer on plain text: WordPiece, BPE or Unigram; AutoTokenizer loads its folder.

    \b
      compress tokenizer --corpus TEXT --set stages.0.vocabulary_size=8000
    """
    run_stages(options, as_given("teacher", options), "tokenizer")
