"""Compare measured models in one table: runs of the store and model folders."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import (
    bootstrap_option,
    group_option,
    length_option,
    slice_options,
    split_option,
    threads_option,
)
from compress.cli._help import Command
from compress.cli._types import ModelName, RunOrModel
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("names", metavar="[RUN|MODEL]...", nargs=-1, type=RunOrModel())
@click.option(
    "--experiment", "compared", metavar="NAME", help="Compare all runs of this experiment that measured a model."
)
@click.option("--against", type=ModelName(), metavar="TEACHER", help="Models: compare each with this one, row by row.")
@split_option("Models: split to score.")
@bootstrap_option
@click.option(
    "--sort",
    default="quality",
    show_default=True,
    metavar="KEY",
    help="Sort by a column, best first; with a leading -, worst first.",
)
@click.option(
    "--filter",
    "filters",
    multiple=True,
    metavar="KEY<VALUE",
    help="Show only rows that meet this condition: < <= > >= = !=; repeatable.",
)
@click.option("--columns", metavar="KEY,…", help="Columns to show: figures, parameters, name, quality, pareto.")
@click.option(
    "--mixed-conditions",
    "mixed",
    is_flag=True,
    help="Show rows measured on different devices, threads, lengths or precisions; latencies are not ranked.",
)
@slice_options
@group_option
@click.option(
    "--max-gap",
    type=float,
    metavar="POINTS",
    help="Gate: fail if the largest gap between the groups of --group-column exceeds this in any compared model.",
)
@length_option
@click.option("--markdown", is_flag=True, help="Print the table as Markdown.")
@click.option("--csv", "csv_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the table as CSV.")
@click.option(
    "--html", "page", type=click.Path(path_type=Path), metavar="FILE", help="Write a self-contained HTML page."
)
@click.option("--log", is_flag=True, help="Also log page and table as an MLflow run.")
@click.option(
    "--device",
    type=click.Choice(["auto", "cpu", "cuda"]),
    default=None,
    help="Models: device to measure on (default: auto).",
)
@threads_option("Models: number of CPU threads (default: torch's).")
@shared("data", "runtime", "store")
def command(
    options: RunOptions,
    names: tuple[str, ...],
    compared: str | None,
    against: str | None,
    split: str,
    bootstrap: int,
    sort: str,
    filters: tuple[str, ...],
    columns: str | None,
    mixed: bool,
    slices: bool,
    sliced: tuple[str, ...],
    group_column: str | None,
    max_gap: float | None,
    length: int | None,
    markdown: bool,
    csv_file: Path | None,
    page: Path | None,
    log: bool,
    device: str | None,
    threads: int | None,
) -> None:
    """Compare runs of the store and model folders in one table.

    \b
      compress compare --experiment compress --filter "size/disk_mb<20" --sort speed/latency_p50_ms

    RUNs are names, ids or folders; MODELs are measured on --data. Without either: the experiment of the newest run.
    Rows that are Pareto-optimal in quality, latency and size are marked; quality is compared by its paired interval.
    Each model is timed in the runtime that it is deployed in: a quantized model in that of its ONNX file, a float model
    in the fastest one that its folder has, on single texts of the data, with tokenization; --length N measures N random
    tokens instead, as recipes do. Latencies of different devices, threads, precisions, lengths or texts are not
    compared. The last lines say which model to ship, and why not the others.

    \b
      compress compare runs/distilbert/student FOLDER --against TEACHER --data DATA --slices --html report.html
    """
    from dataclasses import replace

    from compress.cli.options import resolve_device
    from compress.compare.gather import is_model
    from compress.compare.run import CompareRequest, compare

    if any(is_model(name) for name in names):
        options = replace(options, device=resolve_device(device or "auto", threads), threads=threads)
    keys = [key.strip() for key in (columns or "").split(",") if key.strip()]
    asked = CompareRequest(
        names, compared, against, split, bootstrap, sort, filters, keys, mixed, slices, list(sliced) or None,
        markdown, csv_file, page, log, group_column, max_gap, length,
    )  # fmt: skip
    compare(asked, options)
