"""Factorize the matrices of a trained encoder into low-rank factors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.factorize.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
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
