"""Look into a model's layers: likeness, evenness, linear probes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=ModelName())
@click.option("--against", type=ModelName(), metavar="PARENT", help="The model that it was made from.")
@click.option("--probe", "probes", multiple=True, metavar="DATA", help="Labelled data for a linear probe; repeatable.")
@click.option("--rows", type=click.IntRange(4, 1_000_000), default=512, show_default=True, help="Texts read.")
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where plots and tables go.")
@shared("data", "compute", "store", "experiment")
def command(
    options: RunOptions,
    model: str,
    against: str | None,
    probes: tuple[str, ...],
    rows: int,
    output: Path | None,
) -> None:
    """Look into the layers of MODEL: likeness, evenness, and what linear probes find.

    CKA of every two; how evenly their vectors fill the space, before and after whitening and removal of the top
    components; linear probes beside control tasks. Plots and tables go into MLflow too.

    \b
      compress analyze FOLDER --data DATA
      compress analyze runs/prune-layers/student --against FOLDER --data DATA --probe WORDS_WITH_TAGS
    """
    from dataclasses import replace

    from compress.analysis import analyze

    analyze(model, against, probes, rows, replace(options, output=output))
