"""Remove heads, feed-forward neurons and channels of an encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from compress.cli._flags import model_command, run_table
from compress.stages.prune_width.flags import TABLE

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@model_command(TABLE)
def command(options: RunOptions, model: str | None, given: dict[str, Any]) -> None:
    """Make the layers of MODEL narrower: remove heads, feed-forward neurons and channels.

    \b
      compress prune-width FOLDER --keep 0.5 --data DATA

    MODEL is a folder, runs:/…, models:/…, or a recipe that makes one. Rows and columns are removed, nothing is masked.
    Recovery training then distils MODEL into the result. The model is measured before, after pruning and after
    recovery training.

    \b
      compress prune-width FOLDER --num-heads 6 --intermediate-size 768 --data DATA
      compress prune-width FOLDER --target-latency 3ms --non-uniform --data DATA
      compress prune-width FOLDER --hidden-size 192 --prune-rounds 3 --data DATA

    Importances that need text only: obs (default), hessian, activation. That need labels: reconstruction, fisher,
    taylor. That train masks and weights first: l0, movement (recipes prune-width-l0, prune-width-movement). Baselines:
    magnitude, random.

    Stock Hugging Face classes load the result if all layers have the same shape and heads x head size = hidden size.
    """
    run_table(TABLE, model, given, options)
