"""Measure what a model's layers cost on the machine that serves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import threads_option
from compress.cli._help import Command
from compress.cli._types import IntRange, ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


class Lengths(click.ParamType):
    """Numbers of tokens such as 8,16,32."""

    name = "lengths"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        from compress.fit.target.kit_program import parse_lengths

        try:
            return parse_lengths(str(value))
        except ValueError:
            self.fail(f"'{value}' is not a list of lengths, such as 8,16,32", param, ctx)


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option(
    "--output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="target.json: measure here; kit.pyz: write a program that measures on another machine.",
)
@click.option(
    "--lengths",
    type=Lengths(),
    metavar="N,N",
    help="Sequence lengths to time, in tokens (default: 8,16,32,64,128, or the maximum of the model).",
)
@click.option("--batch", type=IntRange(1, 4096), help="Sequences per call (default: 1).")
@click.option("--runtime", type=click.Choice(["onnxruntime", "openvino"]), help="Runtime (default: all installed).")
@threads_option()
@shared("store")
def command(
    options: RunOptions,
    model: str,
    output: Path | None,
    lengths: list[int] | None,
    batch: int | None,
    runtime: str | None,
    threads: int | None,
) -> None:
    """Measure what the layers of MODEL cost on a machine, as a target for `compress fit`.

    \b
      compress profile FOLDER --threads 1 --output target.json
      compress fit FOLDER --data DATA --max-ms 5 --target target.json

    To measure on another machine, write a kit, copy it there, and run it. It needs Python 3.11, numpy, and onnxruntime
    or openvino, and holds random weights instead of the model's:

    \b
      compress profile FOLDER --output kit.pyz
      scp kit.pyz server: && ssh server python3 kit.pyz --threads 1 --output target.json

    A target is one machine with one number of threads. Needs the extra `onnx`.
    """
    import dataclasses

    from compress.cli._flags import listening
    from compress.cli.options import resolve_device
    from compress.fit.target.profile import ProfileOptions, profile

    resolve_device("cpu", threads)
    options = dataclasses.replace(options, output=output, runtime=runtime, threads=threads)
    profile(model, ProfileOptions(lengths, batch), options, listening(options))
