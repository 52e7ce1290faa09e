"""Cut a model's vocabulary to what a text needs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option(
    "--coverage",
    type=float,
    metavar="PERCENT",
    help="Keep the fewest pieces that make up so much of the text, e.g. 99.9; 100: every piece that it holds.",
)
@click.option("--min-count", type=int, metavar="N", help="Keep pieces that the text holds at least N times.")
@click.option("--size", type=int, metavar="N", help="Keep N pieces in all, the most frequent.")
@click.option(
    "--characters",
    type=click.Choice(["all", "used"]),
    help="Single characters that always stay: all (not given), or ASCII and those that the text uses.",
)
@click.option(
    "--pretrained",
    is_flag=True,
    help="MODEL has a masked-LM head and no task: count and tell on --corpus alone.",
)
@shared("recipe", "data", "corpus", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    coverage: float | None,
    min_count: int | None,
    size: int | None,
    characters: str | None,
    pretrained: bool,
) -> None:
    """Cut the vocabulary of MODEL to what a text needs, and rebuild its tokenizer; nothing is trained.

    MODEL is a fine-tuned folder, runs:/..., models:/..., or a recipe that makes one. Pieces are counted in the training
    texts of --data, or in --corpus where it is given. WordPiece, BPE, Unigram and word-level tokenizers.

    \b
      compress prune-vocab FOLDER --coverage 99.9 --data DATA
      compress prune-vocab FOLDER --size 12000 --corpus my-texts.txt --data DATA
      compress prune-vocab FOLDER --min-count 2 --corpus my-texts.txt --pretrained

    Special and added tokens, bytes and single characters always stay. Text whose pieces all stay gets the same answers
    to the bit; what the rest loses is told on held-out text.
    """
    from compress.cli.flags.prune_vocab import Wanted, prune_vocab

    prune_vocab(Wanted(model, coverage, min_count, size, characters, pretrained), options)
