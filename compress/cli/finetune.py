"""Fine-tune a model folder on labelled text."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._flags import as_given
from compress.cli._verbs import run_stages
from compress.cli.options import Command, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@shared("recipe", "model", "data", "compute", "output", "store", "experiment")
@click.option("--new-head", is_flag=True, help="Replace a task head that has other labels with a new one.")
def command(options: RunOptions, new_head: bool) -> None:
    """Fine-tune a model folder on labelled text, to use it or to make it a teacher.

    \b
      compress finetune --model FOLDER --data FILE_OR_FOLDER
    """
    if new_head:
        import dataclasses

        from compress.contracts import Override

        override = Override("stages.*.new_head", True, "--new-head", required=False)
        options = dataclasses.replace(options, overrides=(*options.overrides, override))
    run_stages(options, as_given("finetune", options), "finetune")
