"""Time models side by side on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli._types import IntRange, ModelName
from compress.cli.options import shared
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", nargs=-1, type=ModelName())
@click.option("--batch", type=IntRange(1, 4096), default=1, show_default=True, help="Batch size: sequences per call.")
@click.option(
    "--length",
    type=IntRange(3, 1_000_000),
    help="Sequence length in tokens (default without --data: 128, or the maximum that all models support).",
)
@click.option("--split", type=click.Choice(["test", "validation", "train"]), help="Split of --data (default: test).")
@click.option("--repeats", type=IntRange(5, 100_000), default=50, show_default=True, help="Number of timed rounds.")
@click.option(
    "--suite",
    type=click.Choice(["gpu"]),
    help="Measure the GPU instead of MODELS: ceilings, inference and training steps of BERT-base (10 minutes).",
)
@click.option(
    "--suite-output",
    type=click.Path(dir_okay=False, path_type=Path),
    default=Path("gpu-benchmark.json"),
    show_default=True,
    help="Suite: file for all figures.",
)
@shared("data", "compute", "any_runtime")
def command(
    options: RunOptions,
    models: tuple[str, ...],
    batch: int,
    length: int | None,
    repeats: int,
    split: str | None,
    suite: str | None,
    suite_output: Path,
) -> None:
    """Time MODELS side by side on this machine.

    \b
      compress benchmark teacher-folder student-folder --data DATA --threads 2
      compress benchmark teacher-folder student-folder --length 128 --threads 2
      compress benchmark --suite gpu

    The models are timed in alternation (A B A B …) and compared with the first one. Before each timed call, an untimed
    one warms up the processor's caches, as in serving. With --data, latency is that of single texts of the data, with
    tokenization: median (p50), p95 and mean over texts at evenly spaced quantiles of the length. Without it, latency is
    measured on LENGTH random tokens, throughput on a mix of lengths from 8 to LENGTH.
    """
    if suite is not None:
        _check_suite(models, options)
        from compress.commands.gpu_suite import benchmark_gpu

        benchmark_gpu(options, suite_output)
        return
    if not models:
        raise click.UsageError("missing argument 'MODELS...'")
    if _is_given("suite_output"):
        raise UserError("has no effect without --suite", where="--suite-output", do="add --suite gpu")
    from compress.commands.benchmark import benchmark

    benchmark(list(models), batch, length, repeats, split, options)


def _is_given(name: str) -> bool:
    source = click.get_current_context().get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _check_suite(models: tuple[str, ...], options: RunOptions) -> None:
    """Raise UserError for what the suite does not read: its shapes are fixed, so that figures can be compared."""
    if models:
        raise UserError(
            "the suite measures fixed shapes, not models", where=models[0], do="remove the models, or --suite"
        )
    for name in ("batch", "length", "split", "repeats", "precision", "runtime"):
        if _is_given(name):
            raise UserError("has no effect with --suite", where=f"--{name}", do=f"remove --{name}")
    for override in options.overrides:
        raise UserError("has no effect with --suite", where=override.origin, do="remove it")
