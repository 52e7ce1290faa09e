"""Join models into a cascade, or add early exits to one: easy texts cost less."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import required_output
from compress.cli._help import Command
from compress.cli._types import IntRange, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.cascade.exits.options import ExitOptions
    from compress.contracts import RunOptions


def read_exit_options(layers: str | None, rows: int | None, seed: int | None) -> ExitOptions | None:
    """None without --exit-layers. Raises UserError for options that need it."""
    from compress.cascade.exits.options import ROWS, ExitOptions, read_layers
    from compress.cli._flags import refuse_flags

    if layers is None:
        do = "add --exit-layers auto, or remove it"
        refuse_flags({"--exit-rows": rows, "--seed": seed}, "only applies to early exits", do)
        return None
    return ExitOptions(read_layers(layers), ROWS if rows is None else rows, seed or 0)


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
@click.option(
    "--confidence",
    type=float,
    default=90.0,
    show_default=True,
    metavar="PERCENT",
    help="Probability with which the loss on other texts like these is within --max-drop (50 to 99.8).",
)
@click.option(
    "--exit-layers",
    metavar="LAYERS",
    help="Add early exits to one model instead: layers after which it may answer, such as 2,4, or auto.",
)
@click.option(
    "--exit-rows",
    type=IntRange(1),
    metavar="N",
    help="Early exits: training rows that they are trained on at most (default: 10,000).",
)
@click.option("--seed", type=int, metavar="N", help="Early exits: random seed of their training (default: 0).")
@required_output()
@shared("data", "device", "runtime", "push", "store", "experiment")
def command(
    options: RunOptions,
    models: tuple[str, ...],
    max_drop: float,
    confidence: float,
    exit_layers: str | None,
    exit_rows: int | None,
    seed: int | None,
    output: Path | None,
) -> None:
    """Join MODELS into one that answers easy texts with a small model and the others with larger ones.

    \b
      compress cascade SMALL PARENT --data DATA --max-drop 0.5 --output runs/cascade
      compress cascade MODEL --exit-layers auto --data DATA --max-drop 0.5 --output runs/early

    Every text goes to the fastest model first. If the probability of its answer is above a threshold, that is the
    answer; otherwise the text goes to the next model. Thresholds are chosen on the validation rows: the fastest cascade
    is chosen whose loss of accuracy against the largest model is proven to be within --max-drop, with --confidence.
    This holds only if the same rows did not choose the models: early stopping and fit choose models by validation rows.
    The loss of the main metric (--metric) and the latency are then measured on the test rows.

    The output is one model folder: predict, evaluate, benchmark, compare, promote and export --to pyfunc work on it.
    It holds all models, so it is larger than the largest. If no cascade is faster than a single model within
    --max-drop, the output is a copy of that model.

    With --exit-layers, one model gets linear heads after some of its layers, trained on its own answers to training
    rows; its weights stay as they are. A text that such an exit is sure of skips the other layers. Exits and thresholds
    are chosen and certified in the same way, and an int8 model stays one. The output holds all in one model.onnx.

    A cascade or early exits that were written are logged to MLflow, with the parent; the files of this run are in a
    folder beside the output, such as runs/cascade-run.

    Single-label classification only. Experimental: the certificate says what is gained. Exit code 3: the loss on the
    test rows is above --max-drop; the folder is written in any case.
    """
    import dataclasses

    from compress.cascade.run import cascade

    exits = read_exit_options(exit_layers, exit_rows, seed)
    cascade(models, max_drop, dataclasses.replace(options, output=output), exits, confidence)
