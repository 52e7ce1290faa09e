"""Fine-tune a model folder on labelled text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import and_then, resolve, stage_flags
from compress.cli._help import Command
from compress.cli._lengths import read_whole_texts
from compress.cli._verbs import run_stages
from compress.cli.options import shared
from compress.stages.finetune.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions
    from compress.recipe import LoadedRecipe


@click.command(cls=Command)
@shared(
    "recipe", "model", "data", "training_compute", "deterministic", "output", "several", "push", "store",
    "experiment",
)  # fmt: skip
@stage_flags(TABLE)
def command(options: RunOptions, given: dict[str, Any]) -> None:
    """Fine-tune a model folder on labelled text, to use it or to make it a teacher.

    \b
      compress finetune --model FOLDER --data FILE_OR_FOLDER
    """

    def load() -> LoadedRecipe:
        name = options.recipe or TABLE.recipe
        found = resolve(TABLE, name, None, given, options)
        return and_then(found, read_whole_texts(found, name, {one.path: one.value for one in found.overrides}))

    run_stages(options, load, TABLE.kind, seeds=given["seeds"])
