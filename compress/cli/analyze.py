"""Inspect a model's layers: CKA similarity, isotropy, linear probes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress.cli._help import Command
from compress.cli._types import IntRange, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option("--against", type=ModelName(), metavar="PARENT", help="Parent: the model that MODEL was made from.")
@click.option(
    "--probe", "probes", multiple=True, metavar="DATA", help="Labelled data to train a linear probe on; repeatable."
)
@click.option(
    "--quantization", is_flag=True, help="Also report the effect of int8 on each matrix: ranges, outliers, error."
)
@click.option("--rows", type=IntRange(4, 1_000_000), default=512, show_default=True, help="Number of texts.")
@click.option(
    "--save-embedder",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Save MODEL there with post-processed sentence embeddings, for compress predict --embeddings.",
)
@click.option(
    "--post-processing",
    "method",
    type=click.Choice(["whitening", "remove-top", "none"]),
    default="whitening",
    show_default=True,
    help="Post-processing of the sentence embeddings.",
)
@click.option(
    "--dimensions",
    type=IntRange(1),
    metavar="N",
    help="Whitening: keep the N dimensions with the largest variance (default: all).",
)
@click.option(
    "--components",
    type=IntRange(1),
    metavar="N",
    help="remove-top: number of principal components to remove (default: 3).",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Folder for plots and tables.")
@shared("data", "device", "store", "experiment")
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
    """Inspect the layers of MODEL: CKA similarity, isotropy, and linear probes.

    \b
      compress analyze FOLDER --data DATA

    It reports: CKA of every pair of layers; isotropy of the hidden states, before and after whitening and removal of
    the top components; the same for sentence embeddings and, for pairs with scores, how well cosines predict the
    scores; linear probes with control tasks. --quantization adds the input range of every matrix, outlier dimensions,
    and the error of every product in int8. Plots and tables are logged to MLflow too.

    \b
      compress analyze runs/prune-layers/student --against FOLDER --data DATA --probe WORDS_WITH_TAGS
      compress analyze FOLDER --data DATA --quantization
      compress analyze FOLDER --data PAIRS --save-embedder runs/embedder --dimensions 256
    """
    from dataclasses import replace

    from compress.analyze.run import analyze
    from compress.analyze.sentence_vectors import VectorOptions
    from compress.errors import UserError

    sizes = {"whitening": ("--dimensions", dimensions), "remove-top": ("--components", components)}
    for owner, (flag, given) in sizes.items():
        if given is not None and owner != method:
            do = f"use --post-processing {owner}, or remove {flag}"
            raise UserError(f"only applies to {owner}", where=flag, do=do)
    wanted = VectorOptions(method, dimensions or components, save_embedder)
    analyze(model, against, probes, rows, wanted, replace(options, output=output), rounded=quantization)
