"""Convert a checkpoint with pickled weights to safetensors."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import required_output
from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", metavar="FOLDER", type=ModelName())
@required_output()
@shared("push")
def command(options: RunOptions, model: str, output: Path | None) -> None:
    """Convert a FOLDER whose only weights are pytorch_model.bin to safetensors.

    \b
      compress convert old-checkpoint --output checkpoint

    Loading a pickle can run code, so no other command reads one. This one reads tensors only, in a separate process
    with limits on memory and time and without network access. The original folder is not changed.
    """
    import dataclasses

    from compress.commands.convert import convert_folder

    convert_folder(model, dataclasses.replace(options, output=output))
