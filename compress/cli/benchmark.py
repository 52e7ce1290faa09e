"""Time models side by side on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", nargs=-1, required=True, type=ModelName())
@click.option(
    "--batch", type=click.IntRange(1, 4096), default=1, show_default=True, help="Batch size: sequences per call."
)
@click.option(
    "--length",
    type=click.IntRange(3, 1_000_000),
    help="Sequence length in tokens (default without --data: 128, or the maximum that all models support).",
)
@click.option("--split", type=click.Choice(["test", "validation", "train"]), help="Split of --data (default: test).")
@click.option(
    "--repeats", type=click.IntRange(5, 100_000), default=50, show_default=True, help="Number of timed rounds."
)
@shared("data", "compute", "any_runtime")
def command(
    options: RunOptions, models: tuple[str, ...], batch: int, length: int | None, repeats: int, split: str | None
) -> None:
    """Time MODELS side by side on this machine.

    \b
      compress benchmark teacher-folder student-folder --data DATA --threads 2
      compress benchmark teacher-folder student-folder --length 128 --threads 2

    The models are timed in alternation (A B A B …) and compared with the first one. Before each timed call, an untimed
    one warms up the processor's caches, as in serving. With --data, latency is that of single texts of the data, with
    tokenization: median (p50), p95 and mean over texts at evenly spaced quantiles of the length. Without it, latency is
    measured on LENGTH random tokens, throughput on a mix of lengths from 8 to LENGTH.
    """
    from compress.commands.benchmark import benchmark

    benchmark(list(models), batch, length, repeats, split, options)
