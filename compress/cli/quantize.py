"""Quantize an encoder, with training or without."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from compress.cli.options import TeacherName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=TeacherName(), required=False)
@click.option(
    "--mode",
    type=click.Choice(["ptq", "qat"]),
    help="Without training, or with: qat distils MODEL into what it became. Not given: as the recipe does, else ptq.",
)
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
    help="The most damaging modules fall back until it costs so many points of the main metric on validation.",
)
@click.option(
    "--fall-back",
    type=click.Choice(["16-bit", "float"]),
    help="To what; 16-bit: stored in 16 bits, computed in floats. Not given: as the recipe says, 16-bit.",
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
@click.option("--seeds", type=click.IntRange(2, 100), help="Repeat with so many seeds, and tell mean and spread.")
@shared("recipe", "data", "compute", "onnx", "output", "store", "experiment")
def command(
    options: RunOptions,
    model: str | None,
    mode: Literal["ptq", "qat"] | None,
    scheme: str | None,
    max_drop: float | None,
    fall_back: str | None,
    floats: tuple[str, ...],
    rows: int | None,
    no_sensitivity: bool,
    seeds: int | None,
) -> None:
    """Turn the matrices, inputs and tables of MODEL into integers, and write the file that computes with them.

    MODEL is a fine-tuned folder, runs:/..., models:/..., or a recipe that makes one. What quantizing each module alone
    costs is measured; with --max-drop the most damaging ones fall back. With --mode qat the quantized model is trained
    on, with MODEL as its teacher and once more on labels alone; the best on validation is kept.

    \b
      compress quantize FOLDER --data DATA
      compress quantize FOLDER --scheme static-percentile --max-drop 0.5 --data DATA
      compress quantize FOLDER --mode qat --scheme static --data DATA

    The result's model.onnx holds integers and is what is measured (--no-onnx leaves it out). The folder beside it keeps
    float weights, rounded where they are used: what it scores in torch is called fake_quantized/...
    """
    from compress.cli.flags.quantize import Wanted, quantize

    quantize(Wanted(model, mode, scheme, max_drop, floats, rows, not no_sensitivity, seeds, fall_back), options)
