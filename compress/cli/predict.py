"""Answer texts with a model folder."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=ModelName())
@click.argument("texts", nargs=-1)
@click.option("--pair", "pairs", multiple=True, metavar="TEXT", help="Second text of a pair; once per TEXT.")
@click.option("--file", type=click.Path(path_type=Path), metavar="FILE", help="Texts, one a line; - is stdin.")
@shared("compute")
def command(options: RunOptions, model: str, texts: tuple[str, ...], pairs: tuple[str, ...], file: Path | None) -> None:
    """Answer TEXTS with MODEL: the label and its probability.

    \b
      compress predict runs/distilbert/student "the screen is not bad at all"
      compress predict runs/distilbert/student --file texts.txt --json

    With --json: one JSON object per text and line (JSONL).
    """
    from compress.prediction import predict_texts

    predict_texts(model, list(texts), list(pairs), file, options)
