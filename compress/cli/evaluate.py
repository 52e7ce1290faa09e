"""Evaluate a model on labelled data: quality with intervals, size and speed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._groups import bootstrap_option, group_option, length_option, slice_options, split_option
from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("model", type=ModelName())
@click.option("--against", type=ModelName(), metavar="TEACHER", help="Model to compare with, row by row.")
@split_option("Split to score.")
@bootstrap_option
@click.option("--robustness", metavar="NAME", help="Measure robustness to disturbed input instead: typos.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Folder for the plot and figures of --robustness, or the figures and int8 ranges of --vectors.",
)
@click.option(
    "--vectors",
    metavar="LIST",
    help="Of an embedding model: how an index stores its vectors, e.g. int8,binary; adds bytes and search time.",
)
@click.option("--dimensions", metavar="LIST", help="With --vectors: keep the first so many dimensions, e.g. 384,128.")
@slice_options
@group_option
@length_option
@click.option("--no-speed", is_flag=True, help="Measure quality, size and operations only, no latency.")
@shared("data", "compute", "runtime", "store", "experiment")
def command(
    options: RunOptions,
    model: str,
    against: str | None,
    split: str,
    bootstrap: int,
    robustness: str | None,
    output: Path | None,
    slices: bool,
    sliced: tuple[str, ...],
    group_column: str | None,
    vectors: str | None,
    dimensions: str | None,
    length: int | None,
    no_speed: bool,
) -> None:
    """Evaluate MODEL on labelled data: quality with 95 % intervals, size, operations, latency, throughput, memory.

    \b
      compress evaluate runs/distilbert/student --data opinions --against runs/teachers/teacher-…/model

    Latency is that of single texts of the data, with tokenization: median (p50), p95 and mean over texts at evenly
    spaced quantiles of the length. --length N measures N random tokens instead, --no-speed times nothing.

    --slices reports quality by groups of rows and, with --against, the groups where MODEL is worse than its teacher.

    --group-column compares the groups of a column with each other: the largest gap, with its interval.

    \b
      compress evaluate runs/distilbert/student --data opinions --against FOLDER --slices
      compress evaluate FOLDER --data reviews.csv --group-column language
      compress evaluate runs/distilbert/student --data opinions --robustness typos

    --vectors compares ways to store an embedding model's vectors: float32, int8, binary, and binary+int8, in which int8
    vectors rank the candidates of a binary search.

    
      compress evaluate EMBEDDER --data DATA --vectors float32,int8,binary --dimensions 384,128,64
    """
    from dataclasses import replace

    from compress.cli._flags import refuse_flags
    from compress.commands.evaluate import evaluate
    from compress.commands.robustness import evaluate_robustness
    from compress.errors import UserError

    if vectors is not None or dimensions is not None:
        from compress.commands.stored_vectors import evaluate_vectors, read_kinds
        from compress.stages.shared.flags import parse_numbers

        other = {
            "--robustness": robustness, "--slices": slices or sliced, "--group-column": group_column,
            "--no-speed": no_speed,
        }  # fmt: skip
        refuse_flags(other, "cannot be combined with --vectors", "remove one of the two")
        kinds = read_kinds("float32" if vectors is None else vectors)
        sizes = () if dimensions is None else parse_numbers(dimensions, "--dimensions", "384,128")
        evaluate_vectors(model, against, split, bootstrap, kinds, sizes, replace(options, output=output))
        return
    if robustness is not None and (slices or sliced):
        raise UserError("cannot be combined with --slices", where="--robustness", do="remove one of the two")
    if robustness is not None and group_column is not None:
        raise UserError("cannot be combined with --group-column", where="--robustness", do="remove one of the two")
    if robustness is not None:
        other = {"--length": length, "--no-speed": no_speed}
        refuse_flags(other, "has no effect with --robustness, which times nothing", "remove it")
    if no_speed and length is not None:
        raise UserError("cannot be combined with --length", where="--no-speed", do="remove one of the two")
    options = replace(options, output=output)
    if robustness is None:
        evaluate(
            model, against, split, bootstrap, options,
            slices=slices or bool(sliced), sliced=list(sliced) or None, group_column=group_column,
            length=length, timed=not no_speed,
        )  # fmt: skip
    else:
        evaluate_robustness(model, against, split, bootstrap, robustness, options)
