"""Time models side by side on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", nargs=-1, required=True, type=ModelName())
@click.option("--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Sequences at once.")
@click.option(
    "--length",
    type=click.IntRange(3, 1_000_000),
    help="Tokens of each (default: 128, or as many as every model has positions).",
)
@click.option("--repeats", type=click.IntRange(5, 100_000), default=50, show_default=True, help="Rounds timed.")
@shared("compute", "any_runtime")
def command(options: RunOptions, models: tuple[str, ...], batch: int, length: int | None, repeats: int) -> None:
    """Time MODELS side by side on this machine, in turn (A B A B …); the first is what the others are compared with.

    Each timed call comes after an untimed one of the same model, which fills the processor's caches as serving it does.
    Latency is of full-length sequences; throughput is of a mix of lengths from 8 to LENGTH.

    \b
      compress benchmark teacher-folder student-folder --length 128 --threads 2
    """
    from compress.commands.benchmark import benchmark

    benchmark(list(models), batch, length, repeats, options)
