"""Export a model to ONNX, OpenVINO, Hugging Face, MLflow or a web page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from compress.cli._groups import required_output, split_option, threads_option
from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--to",
    "kind",
    type=click.Choice(["onnx", "openvino", "hf", "pyfunc", "web"]),
    default="onnx",
    show_default=True,
    help="onnx: a folder with model.onnx; openvino: also the OpenVINO format; hf: a folder that transformers loads; "
    "pyfunc: an MLflow model for `mlflow models serve`; web: a folder for transformers.js and a page that runs the "
    "model in a browser.",
)
@required_output()
@click.option(
    "--head",
    type=click.Choice(["task", "mlm", "pair", "rtd", "none"]),
    help="Head to export; none: the encoder's hidden states (default: the task's, if any).",
)
@click.option("--opset", type=int, help="ONNX opset version, 17 to 22 (default: 17, which the oldest runtimes read).")
@click.option(
    "--portable",
    is_flag=True,
    help="Quantized models: standard operators only: same outputs, slower than onnxruntime's fused operators.",
)
@click.option(
    "--writer",
    type=click.Choice(["compress", "torch"]),
    default="compress",
    show_default=True,
    help="Float models: torch uses torch.export and its ONNX exporter.",
)
@split_option("Split of --data to check on.")
@threads_option("Number of CPU threads for timing (default: torch's).")
@shared("data", "push")
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
    """Export MODEL to ONNX, or to another format with --to.

    \b
      compress export runs/distilbert/student --data opinions --output runs/student-onnx
      compress export runs/distilbert/student --to hf --output runs/student-hf
      compress export runs/distilbert/student --to pyfunc --output runs/served
      compress export runs/int8/model --to web --data opinions --output runs/web

    The outputs are compared with the model's on 256 rows (of --data, else random tokens); the export fails if they
    differ. The ONNX file and the model are then timed in alternation. For a quantized model the file computes in
    integers; its outputs must match those of the fake-quantized model. Batch size and length are dynamic. Needs the
    extra `onnx`, or `openvino` with --to openvino.

    The page of --to web needs two npm packages, and no network after `npm install`; the folder's README.md says how.
    The folder also answers in Python, with onnxruntime and tokenizers alone. Question answering is not supported.
    """
    import dataclasses

    from compress.cli._flags import refuse_flags
    from compress.cli.options import resolve_device
    from compress.commands.export import export_folder, export_pyfunc, export_stock
    from compress.errors import UserError

    resolve_device("cpu", threads)
    options = dataclasses.replace(options, output=output)
    if kind in ("onnx", "openvino"):
        export_folder(model, head, opset, split, options, portable=portable, by=writer, openvino=kind == "openvino")
        return
    other = {"--head": head, "--opset": opset, "--portable": portable, "--writer": writer != "compress"}
    refuse_flags(other, "only applies to ONNX export", "remove it or use --to onnx")
    if kind != "hf" and options.push:
        why = f"{'an MLflow model' if kind == 'pyfunc' else 'a web page'} is not a model folder"
        raise UserError(f"cannot be combined with --to {kind}", where="--push", why=why, do="remove one of the two")
    if kind == "hf":
        export_stock(model, split, options)
    elif kind == "web":
        from compress.commands.export_web import export_web

        export_web(model, split, options)
    else:
        export_pyfunc(model, options)
