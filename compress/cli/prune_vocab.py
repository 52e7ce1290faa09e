"""Reduce a model's vocabulary to the tokens that a text needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import stage_flags
from compress.cli._help import Command
from compress.cli._types import TeacherName
from compress.cli.options import shared
from compress.stages.prune_vocab.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=TeacherName(), required=False)
@shared("recipe", "data", "corpus", "training_compute", "deterministic", "output", "push", "store", "experiment")
@stage_flags(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Reduce the vocabulary of MODEL to the tokens that a text needs, and rebuild its tokenizer; nothing is trained.

    \b
      compress prune-vocab FOLDER --coverage 99.9 --data DATA

    MODEL is a fine-tuned folder, runs:/..., models:/..., or a recipe that makes one. Tokens are counted in the training
    texts of --data, or in --corpus if given. WordPiece, BPE, Unigram and word-level tokenizers are supported.

    \b
      compress prune-vocab FOLDER --size 12000 --corpus my-texts.txt --data DATA
      compress prune-vocab FOLDER --min-count 2 --corpus my-texts.txt --pretrained

    Special and added tokens, bytes and single characters always stay. Predictions are identical, bit for bit, for text
    whose tokens all stay; the loss on other text is measured on held-out text.
    """
    from compress.cli._flags import listening, resolve, run

    console, name = listening(options), options.recipe or TABLE.recipe
    typed = {one.path: one.origin for one in options.overrides}
    given |= {"corpus": typed.get("corpus.source"), "data": typed.get("data.source")}
    # A recipe that reads no corpus rejects one, until the flags make it read it.
    loaded = resolve(TABLE, name, model, given, options, later="corpus.")
    run(loaded, options, console, verb=TABLE.kind)
