"""Quantize an encoder without training it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option(
    "--scheme",
    metavar="NAME",
    help="per-token, static, static-ema, static-percentile, static-mse, static-kl, lsq, lsq-plus, q8bert, int4 or "
    "int4-tables.",
)
@click.option(
    "--max-drop",
    type=float,
    metavar="POINTS",
    help="Leave the most damaging modules float until it costs so many points of the main metric on validation.",
)
@click.option(
    "--float",
    "floats",
    multiple=True,
    metavar="PATTERN",
    help="Modules that stay float, such as 'encoder.layers.0.*'; may be repeated.",
)
@click.option("--rows", type=int, metavar="N", help="Training texts that ranges are observed on.")
@click.option("--no-sensitivity", is_flag=True, help="Do not measure what each module alone costs.")
@shared("recipe", "data", "compute", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    scheme: str | None,
    max_drop: float | None,
    floats: tuple[str, ...],
    rows: int | None,
    no_sensitivity: bool,
) -> None:
    """Turn the matrices, inputs and tables of MODEL into integers.

    MODEL is a fine-tuned folder, runs:/..., models:/..., or a recipe that makes one. What quantizing each module alone
    costs is measured; with --max-drop the most damaging ones stay float.

    \b
      compress quantize FOLDER --data DATA
      compress quantize FOLDER --scheme static-percentile --max-drop 0.5 --data DATA

    The folder keeps float weights, which are rounded where they are used: its answers are those of integers, its file
    and its speed are not. Its figures are called fake_quantized/..., and no speed is told.
    """
    from compress.quantizing import Wanted, quantize

    quantize(Wanted(model, scheme, max_drop, floats, rows, not no_sensitivity), options)
