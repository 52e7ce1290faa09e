"""Make a model's probabilities mean what they say."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared, split_option

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@split_option("Rows that the temperature is fitted on.", ("validation", "train"))
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the model goes.")
@shared("data", "compute")
def command(options: RunOptions, model: str, split: str, output: Path | None) -> None:
    """Give MODEL the temperature with which its probabilities fit labelled data (Guo et al., arXiv 1706.04599).

    \b
      compress calibrate runs/distilbert/student --data opinions --output runs/calibrated

    Its answers stay the same. The temperature is kept in the folder's compress.json: `compress predict` heeds it, other
    programs that load the folder do not.
    """
    import dataclasses

    from compress.commands.calibrate import calibrate

    calibrate(model, split, dataclasses.replace(options, output=output))
