"""Factorize the matrices of a trained encoder into low-rank factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from compress.cli._flags import run_table, stage_flags
from compress.cli._help import Command
from compress.cli._types import TeacherName
from compress.cli.options import shared
from compress.stages.factorize.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=TeacherName(), required=False)
@shared(
    "recipe", "data", "unlabelled", "training_compute", "deterministic", "output", "several", "push", "store",
    "experiment",
)  # fmt: skip
@stage_flags(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Replace the matrices of MODEL's layers by products of two low-rank factors.

    \b
      compress factorize FOLDER --keep 0.5 --data DATA

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Recovery training then distils MODEL into the
    result. The model is measured before, after factorization and after recovery training.

    \b
      compress factorize FOLDER --max-mb 60 --data DATA --no-recover
      compress factorize FOLDER --keep 0.75 --method svd --allocation uniform --data DATA --no-recover

    It saves more bytes than time: per operation, two low-rank products take longer than one full product. To factorize
    the embedding tables, use compress share --pattern none --embedding-size E.
    """
    run_table(TABLE, model, given, options)
