"""Share parameters across the layers of a trained encoder and factorize its embeddings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.share.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE, "corpus")
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Convert MODEL to ALBERT's form: groups of layers share parameters, and the embedding table is factorized.

    \b
      compress share FOLDER --groups 3 --embedding-size 128 --residual-rank 16 --data DATA

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Recovery training then distils MODEL into the
    result. The model is measured before, after conversion and after recovery training.

    \b
      compress share FOLDER --pattern none --embedding-error 0.05 --data DATA
      compress share FOLDER --groups 2 --pattern cka --init activation --data DATA --no-recover

    The model gets smaller, not faster: every layer is still computed. The recipe share-gradual ties layers in two steps
    and then removes the residuals; share-pull trains with a proximity regularizer before it ties layers; share-general
    recovers on plain text first, then on the task.
    """
    folder = given.pop("general_teacher")
    run_table(TABLE, model, given, options, inputs={} if folder is None else {"general_teacher": folder})
