"""Register a model in MLflow and set its alias, if it meets the gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli._groups import group_option, split_option
from compress.cli._help import Command
from compress.cli._types import ModelName
from compress.cli.options import shared

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", type=ModelName(), nargs=-1, required=True)
@click.option("--as", "alias", required=True, metavar="ALIAS", help="Alias to set, such as champion.")
@click.option(
    "--name", metavar="NAME", help="Name of the registered model (default: the dataset that it was trained on)."
)
@click.option(
    "--max-drop",
    type=float,
    metavar="POINTS",
    help="Gate: maximum drop of the main metric from the teacher, in percentage points.",
)
@click.option("--sure", is_flag=True, help="Require that the whole 95 % interval meets --max-drop and --max-gap.")
@click.option("--max-mb", type=float, metavar="MB", help="Gate: maximum size on disk in megabytes.")
@click.option(
    "--max-ms",
    type=float,
    metavar="MS",
    help="Gate: maximum latency in milliseconds, as measured: the mean over texts, or the median of one length.",
)
@click.option(
    "--max-gap",
    type=float,
    metavar="POINTS",
    help="Gate: maximum gap of the main metric between the groups of --group-column, in percentage points.",
)
@group_option
@click.option(
    "--against", type=ModelName(), metavar="TEACHER", help="With --data: the model that the drop is measured from."
)
@split_option("Split of --data to measure on.")
@click.option("--replace", is_flag=True, help="Move the alias from the version that has it.")
@click.option(
    "--pyfunc/--no-pyfunc",
    default=None,
    help="Let `mlflow.pyfunc.load_model` and `mlflow models serve` open the version (default: yes, where the model "
    "answers a task).",
)
@click.option("--dry-run", is_flag=True, help="Check everything and print what would be done; change nothing.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment for a model without a run in the store.")
@shared("data", "compute", "runtime", "store")
def command(
    options: RunOptions,
    models: tuple[str, ...],
    alias: str,
    name: str | None,
    max_drop: float | None,
    sure: bool,
    max_mb: float | None,
    max_ms: float | None,
    max_gap: float | None,
    group_column: str | None,
    against: str | None,
    split: str,
    replace: bool,
    pyfunc: bool | None,
    dry_run: bool,
    experiment: str | None,
) -> None:
    """Register the best of MODELS that meets the gates as a new version, and set its alias.

    \b
      compress promote runs/distilbert/student --as champion
      compress promote runs/a/student runs/b/student --as champion --max-drop 1 --max-mb 20 --data reviews.csv \\
        --against teacher

    The figures are read from the model folder; with --data they are measured now. If no
    model meets the gates, the command fails and reports the closest one; if several meet them, the best is registered.
    Model card, figures and dataset are registered with it.
    """
    import dataclasses

    from compress.commands.promote import Gates, promote
    from compress.errors import UserError

    if against is not None and not any(o.path == "data.source" for o in options.overrides):
        raise UserError(
            "needs --data", where="--against", why="the comparison is measured on labelled rows", do="add --data DATA"
        )
    if sure and max_drop is None and max_gap is None:
        raise UserError(
            "has no effect without --max-drop or --max-gap", where="--sure", do="add --max-drop or --max-gap POINTS"
        )
    if group_column is not None and not any(o.path == "data.source" for o in options.overrides):
        why = "groups are measured on labelled rows"
        raise UserError("needs --data", where="--group-column", why=why, do="add --data DATA")
    options = dataclasses.replace(options, dry_run=dry_run, experiment=experiment)
    gates = Gates(max_drop, max_mb, max_ms, sure, max_gap, group_column)
    promote(models, alias, name, gates, options, against=against, split=split, replace=replace, pyfunc=pyfunc)
