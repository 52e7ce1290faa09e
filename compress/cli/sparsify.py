"""Set two of every four weights of an encoder to zero (2:4 sparsity)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.sparsify.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Make the matrices of MODEL's layers 2:4 sparse: two of every four weights become zero.

    \b
      compress sparsify FOLDER --data DATA

    MODEL is a folder, runs:/..., models:/..., or a recipe that makes one. Recovery training then distils MODEL into the
    result; zeros stay zeros. The model is measured before, after pruning and after recovery training.

    \b
      compress sparsify FOLDER --data DATA --method magnitude --no-recover
      compress sparsify FOLDER --data DATA --steps 300

    NOTHING GETS SMALLER OR FASTER on a CPU, nor on a GPU below compute capability 8.0: the zeros are stored and
    computed. On newer GPUs --runtime torch-sparse skips them; measure it there (compress benchmark). The folder loads
    in transformers as a dense model with zeros.
    """
    run_table(TABLE, model, given, options)
