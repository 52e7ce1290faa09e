"""Give a model an alias in the registry, if it meets stated gates."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from compress.cli.options import Command, ModelName, shared, split_option

if TYPE_CHECKING:
    from compress.contracts import RunOptions


@click.command(cls=Command)
@click.argument("models", type=ModelName(), nargs=-1, required=True)
@click.option("--as", "alias", required=True, metavar="ALIAS", help="Alias that the version gets, such as champion.")
@click.option("--name", metavar="NAME", help="Registered model; not given: the data that the model was trained on.")
@click.option("--max-drop", type=float, metavar="POINTS", help="Most points of its main metric below the teacher.")
@click.option(
    "--sure", is_flag=True, help="The whole 95 % interval must keep --max-drop, not the measured value alone."
)
@click.option("--max-mb", type=float, metavar="MB", help="Most megabytes on disk.")
@click.option("--max-ms", type=float, metavar="MS", help="Most milliseconds, latency p50 as measured.")
@click.option("--against", type=ModelName(), metavar="TEACHER", help="With --data: what the drop is measured against.")
@split_option("Rows of --data to measure on.")
@click.option("--replace", is_flag=True, help="Move the alias from the version that holds it.")
@click.option("--pyfunc", is_flag=True, help="In a form that `mlflow models serve` answers with.")
@click.option("--dry-run", is_flag=True, help="Check all and say what would be done; change nothing.")
@click.option("--experiment", metavar="NAME", help="MLflow experiment for a model that no run of the store made.")
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
    against: str | None,
    split: str,
    replace: bool,
    pyfunc: bool,
    dry_run: bool,
    experiment: str | None,
) -> None:
    """Make the one of MODELS that meets the gates a version of a registered model, and give it an alias.

    \b
      compress promote runs/distilbert/student --as champion
      compress promote runs/a/student runs/b/student --as champion --max-drop 1 --max-mb 20 --data reviews.csv \\
        --against teacher

    The figures are those in the model folder; with --data they are measured now. A model that misses a gate is refused,
    and the nearest figure is named; of several that meet all, the best is taken. Card, figures and data set go along.
    """
    import dataclasses

    from compress.commands.promote import Gates, promote
    from compress.errors import UserError

    if against is not None and not any(o.path == "data.source" for o in options.overrides):
        raise UserError("is measured against on data", where="--against", do="add --data DATA")
    if sure and max_drop is None:
        raise UserError("says how --max-drop is kept", where="--sure", do="add --max-drop POINTS")
    options = dataclasses.replace(options, dry_run=dry_run, experiment=experiment)
    gates = Gates(max_drop, max_mb, max_ms, sure)
    promote(models, alias, name, gates, options, against=against, split=split, replace=replace, pyfunc=pyfunc)
