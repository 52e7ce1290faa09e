"""Write a model as an ONNX file, checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress.cli.options import ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command()
@click.argument("model", type=ModelName())
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the folder goes.")
@click.option(
    "--head",
    type=click.Choice(["task", "mlm", "pair", "rtd", "none"]),
    help="Whose answer the file gives; none: the states of the encoder; not given: the task's, if any.",
)
@click.option("--opset", type=int, default=20, show_default=True, help="Version of the ONNX operators, 17 to 22.")
@click.option(
    "--portable",
    is_flag=True,
    help="Of a quantized model: standard operators alone, the same numbers, slower; else onnxruntime's fused product.",
)
@click.option(
    "--writer",
    type=click.Choice(["compress", "torch"]),
    default="compress",
    show_default=True,
    help="Of a float model, torch: the graph of torch.export and its ONNX exporter in place of ours.",
)
@click.option(
    "--split",
    type=click.Choice(["test", "validation", "train"]),
    default="test",
    show_default=True,
    help="Rows of --data to check on.",
)
@click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads that are timed; not given: torch decides.")
@shared("data")
def command(
    options: RunOptions,
    model: str,
    output: Path | None,
    head: str | None,
    opset: int,
    portable: bool,
    writer: Literal["compress", "torch"],
    split: str,
    threads: int | None,
) -> None:
    """Write MODEL with a `model.onnx` beside its weights, for onnxruntime and whatever else reads ONNX.

    \b
      compress export runs/distilbert/student --data opinions --output runs/student-onnx

    The file is compared with the model on 256 rows (of --data, else of random tokens) and refused where it differs;
    then both are timed in turn. Of a quantized model the file holds integers and computes with them; it must answer as
    the model does with its numbers rounded. Batch and length are dynamic. Needs the extra `onnx`.
    """
    import dataclasses

    from compress.cli.options import resolve_device
    from compress.exporting import export_folder

    resolve_device("cpu", threads)
    export_folder(model, head, opset, split, dataclasses.replace(options, output=output), portable=portable, by=writer)
