"""`compress evaluate`: quality, size and speed of a model on labelled data."""

from __future__ import annotations

from collections.abc import Sequence

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import UserError
from compress.measure.labelled import measure_models, print_groups, print_measured, print_slices
from compress.measure.measured_model import MeasuredModel
from compress.report.rows import churn_table


def evaluate(
    model: str,
    against: str | None,
    split: str,
    bootstrap: int,
    options: RunOptions,
    *,
    slices: bool = False,
    sliced: Sequence[str] | None = None,
    group_column: str | None = None,
    length: int | None = None,
    timed: bool = True,
) -> list[MeasuredModel]:
    """Measure one model, or two row by row, on a split of labelled data, and print the table.

    slices: also by groups of rows.  sliced: which (`data.tables.groups.groups`).
    group_column: of the groups that are compared with each other.
    length: tokens of the sequences that latency is measured on; None: texts of the data.
    timed: without it, quality, size and operations only.
    """
    written = {"--output": options.output, "--tracking-uri": options.tracking_uri, "--experiment": options.experiment}
    for flag, value in written.items():
        if value is not None:
            raise UserError("only applies with --robustness", where=flag, do="remove it, or add --robustness")
    console = Console(quiet=options.quiet, json=options.json)
    measured = measure_models(
        [model], against, split, bootstrap, options, console, sliced,
        group_column=group_column, length=length, timed=timed,
    )  # fmt: skip
    print_measured(console, measured)
    for m in measured:
        if m.churn:
            console.table("", *churn_table(m.churn, "parent"))
    if slices:
        print_slices(console, measured)
    print_groups(console, measured)
    return measured
