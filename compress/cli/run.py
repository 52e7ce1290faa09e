"""Run all stages of a recipe in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._verbs import run_stages
from compress.cli.options import RecipeName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("name", metavar="RECIPE", type=RecipeName())
@shared("overrides", "model", "teacher", "data", "corpus", "compute", "onnx", "output", "store", "experiment")
def command(options: RunOptions, name: str) -> None:
    """Run all stages of RECIPE in order.

    \b
      compress run teacher
    """
    run_stages(options, name, None)
