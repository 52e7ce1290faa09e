"""Write a model as an ONNX file, checked against the model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress.cli.options import Command, ModelName, shared, split_option

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--to",
    "kind",
    type=click.Choice(["onnx", "openvino", "hf", "pyfunc"]),
    default="onnx",
    show_default=True,
    help="onnx: with a model.onnx; openvino: with that and its OpenVINO form; hf: a folder that transformers loads; "
    "pyfunc: what `mlflow models serve` answers with.",
)
@click.option("--output", type=click.Path(path_type=Path), metavar="FOLDER", help="Where the folder goes.")
@click.option(
    "--head",
    type=click.Choice(["task", "mlm", "pair", "rtd", "none"]),
    help="Whose answer the file gives; none: the states of the encoder; not given: the task's, if any.",
)
@click.option(
    "--opset", type=int, help="Version of the ONNX operators, 17 to 22; not given: 17, which the oldest runtimes read."
)
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
@split_option("Rows of --data to check on.")
@click.option("--threads", type=click.IntRange(1, 4096), help="CPU threads that are timed; not given: torch decides.")
@shared("data")
def command(
    options: RunOptions,
    model: str,
    kind: str,
    output: Path | None,
    head: str | None,
    opset: int | None,
    portable: bool,
    writer: Literal["compress", "torch"],
    split: str,
    threads: int | None,
) -> None:
    """Write MODEL for another program: with a `model.onnx` beside its weights, or as --to says.

    \b
      compress export runs/distilbert/student --data opinions --output runs/student-onnx
      compress export runs/distilbert/student --to hf --output runs/student-hf
      compress export runs/distilbert/student --to pyfunc --output runs/served

    The result is compared with the model on 256 rows (of --data, else of random tokens) and refused where it differs.
    An ONNX file and the model are then timed in turn. Of a quantized model the file holds integers and computes with
    them; it must answer as the model does with its numbers rounded. Batch and length are dynamic. Needs the extra
    `onnx`, or `openvino` with --to openvino.
    """
    import dataclasses

    from compress.cli.options import resolve_device
    from compress.commands.export import export_folder, export_pyfunc, export_stock
    from compress.errors import UserError

    resolve_device("cpu", threads)
    options = dataclasses.replace(options, output=output)
    if kind in ("onnx", "openvino"):
        export_folder(model, head, opset, split, options, portable=portable, by=writer, openvino=kind == "openvino")
        return
    for flag, asked in (
        ("--head", head is not None),
        ("--opset", opset is not None),
        ("--portable", portable),
        ("--writer", writer != "compress"),
    ):
        if asked:
            raise UserError("is of ONNX files", where=flag, do=f"leave it out with --to {kind}")
    if kind == "hf":
        export_stock(model, split, options)
    else:
        export_pyfunc(model, options)
