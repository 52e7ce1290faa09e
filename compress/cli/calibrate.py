"""Calibrate a model's probabilities by temperature scaling."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import required_output, split_option
from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@split_option("Split to fit the temperature on.", ("validation", "train"))
@required_output()
@shared("data", "device", "push")
def command(options: RunOptions, model: str, split: str, output: Path | None) -> None:
    """Fit a softmax temperature on labelled data (temperature scaling; Guo et al., arXiv 1706.04599).

    \b
      compress calibrate runs/distilbert/student --data opinions --output runs/calibrated

    Predictions are unchanged; only the probabilities change. The temperature is stored in the folder's compress.json:
    `compress predict`, the Python API and `export --to pyfunc` and `--to web` apply it; other programs ignore it. If no
    temperature improves the probabilities of rows that it was not fitted on (cross-validation), nothing is written and
    the exit code is 3.
    """
    import dataclasses

    from compress.commands.calibrate import calibrate

    calibrate(model, split, dataclasses.replace(options, output=output))
