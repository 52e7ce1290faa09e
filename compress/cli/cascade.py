"""Join models into a cascade: a small one answers what it is sure of, larger ones the rest."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", type=ModelName(), nargs=-1, required=True)
@click.option(
    "--max-drop",
    type=float,
    default=0.5,
    show_default=True,
    metavar="POINTS",
    help="Maximum drop of accuracy against the largest model, in percentage points.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Output folder.")
@shared("data", "device", "runtime", "push")
def command(options: RunOptions, models: tuple[str, ...], max_drop: float, output: Path | None) -> None:
    """Join MODELS into one that answers easy texts with a small model and the others with larger ones.

    \b
      compress cascade SMALL PARENT --data DATA --max-drop 0.5 --output runs/cascade

    Every text goes to the fastest model first. If the probability of its answer is above a threshold, that is the
    answer; otherwise the text goes to the next model. Temperatures and thresholds are fitted on the validation rows:
    the cascade has the least mean latency whose loss against the largest model, plus one standard error, is within
    --max-drop. Loss and latency are then measured on the test rows.

    The output is one model folder: predict, evaluate, benchmark, compare, promote and export --to pyfunc work on it.
    It holds all models, so it is larger than the largest. If no cascade is faster than a single model within
    --max-drop, the output is a copy of that model. Single-label classification only. Experimental: the certificate of
    each cascade says what it gains. Exit code 3: the loss on the test
    rows is above --max-drop; the folder is written in any case.
    """
    import dataclasses

    from compress.cascade.run import cascade

    cascade(models, max_drop, dataclasses.replace(options, output=output))
