"""Look into a model's layers: likeness, evenness, linear probes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option("--against", type=ModelName(), metavar="PARENT", help="The model that it was made from.")
@click.option("--probe", "probes", multiple=True, metavar="DATA", help="Labelled data for a linear probe; repeatable.")
@click.option("--quantization", is_flag=True, help="Also what int8 would do to each matrix: ranges, outliers, error.")
@click.option("--rows", type=click.IntRange(4, 1_000_000), default=512, show_default=True, help="Texts read.")
@click.option(
    "--save-embedder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Write MODEL there with post-processed vectors of texts, which predict --embeddings gives.",
)
@click.option(
    "--post-processing",
    "method",
    type=click.Choice(["whitening", "remove-top", "none"]),
    default="whitening",
    show_default=True,
    help="What evens the vectors of texts out.",
)
@click.option(
    "--dimensions", type=click.IntRange(1), metavar="N", help="Whitening keeps the N that vary most; else all."
)
@click.option(
    "--components", type=click.IntRange(1), metavar="N", help="How many remove-top takes away; 3 when not given."
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where plots and tables go.")
@shared("data", "compute", "store", "experiment")
def command(
    options: RunOptions,
    model: str,
    against: str | None,
    probes: tuple[str, ...],
    quantization: bool,
    rows: int,
    save_embedder: Path | None,
    method: Literal["whitening", "remove-top", "none"],
    dimensions: int | None,
    components: int | None,
    output: Path | None,
) -> None:
    """Look into the layers of MODEL: likeness, evenness, and what linear probes find.

    CKA of every two; how evenly their vectors fill the space, before and after whitening and removal of the top
    components; the same for vectors of whole texts and, of pairs with scores, how well cosines follow the scores;
    linear probes beside control tasks. --quantization adds the ranges of every
    matrix' input, dimensions that lie far out, and the error of every product
    in int8. Plots and tables go into MLflow too.

    \b
      compress analyze FOLDER --data DATA
      compress analyze runs/prune-layers/student --against FOLDER --data DATA --probe WORDS_WITH_TAGS
      compress analyze FOLDER --data DATA --quantization
      compress analyze FOLDER --data PAIRS --save-embedder runs/embedder --dimensions 256
    """
    from dataclasses import replace

    from compress.analyze.run import analyze
    from compress.analyze.sentence_vectors import Wanted
    from compress.errors import UserError

    sizes = {"whitening": ("--dimensions", dimensions), "remove-top": ("--components", components)}
    for owner, (flag, given) in sizes.items():
        if given is not None and owner != method:
            raise UserError(f"goes with {owner}", where=flag, do=f"use --post-processing {owner}, or leave it out")
    wanted = Wanted(method, dimensions or components, save_embedder)
    analyze(model, against, probes, rows, wanted, replace(options, output=output), rounded=quantization)
