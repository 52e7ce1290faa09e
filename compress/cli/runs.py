"""List the runs of the MLflow store, or show one."""

from __future__ import annotations

import click

from compress.cli.main import debug_option
from compress.cli.recipes import Verbs

COLUMNS = ("size/disk_mb", "speed/latency_p50_ms", "vs_teacher/speedup")
_uri = click.option(
    "--tracking-uri", metavar="URI", help="MLflow store; not given: MLFLOW_TRACKING_URI, else mlruns/mlflow.db."
)
_json = click.option("--json", "as_json", is_flag=True, help="The result as one JSON document.")


@click.group(cls=Verbs)
def command() -> None:
    """List the runs of the MLflow store, or show one."""


@command.command("list")
@click.option("--experiment", metavar="NAME", help="Only this experiment.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="Most runs shown.")
@_uri
@_json
@debug_option
def list_(experiment: str | None, limit: int, tracking_uri: str | None, as_json: bool) -> None:
    """List runs, the newest first; a run whose process died is shown as dead."""
    import dataclasses

    from compress.console import Console
    from compress.tracking.listing import list_runs
    from compress.tracking.store import resolve_store

    console = Console(json=as_json)
    rows = list_runs(resolve_store(tracking_uri), experiment, limit)
    table = []
    for r in rows:
        value = r.metrics.get(f"quality/{r.metric}")
        quality = "" if value is None else f"{r.metric} {value:.4f}"
        figures = (r.metrics.get(c, "") for c in COLUMNS)
        table.append([r.run_id[:8], r.name, r.experiment, r.role, r.status, quality, *figures])
    console.table("", ["id", "name", "experiment", "role", "status", "quality", *COLUMNS], table)
    console.document([dataclasses.asdict(r) for r in rows])


@command.command()
@click.argument("run")
@_uri
@_json
@debug_option
def show(run: str, tracking_uri: str | None, as_json: bool) -> None:
    """Show the parameters and figures of RUN, an id (or its begin) or a name."""
    import dataclasses

    from compress.console import Console
    from compress.tracking.listing import find_run
    from compress.tracking.store import resolve_store

    console = Console(json=as_json)
    row = find_run(resolve_store(tracking_uri), run)
    facts = {"id": row.run_id, "experiment": row.experiment, "role": row.role, "method": row.method}
    facts |= {"status": row.status, "folder": row.folder}
    console.table(row.name, ["what", "value"], [[k, v] for k, v in facts.items()])
    console.table("parameters", ["name", "value"], sorted(row.params.items()))
    console.table("figures", ["name", "value"], sorted(row.metrics.items()))
    console.document(dataclasses.asdict(row))
