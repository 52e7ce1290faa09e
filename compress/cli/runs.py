"""Manage the runs of the MLflow store: list, show, delete, export and import them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._types import FloatRange, IntRange
from compress.cli.main import debug_option
from compress.cli.recipes import Verbs
from compress.cli.sync import command as sync_command
from compress.errors import ExitCode, UserError, format_count

if TYPE_CHECKING:
    from compress.console import Console
    from compress.tracking.store import Store

COLUMNS = ("size/disk_mb", "speed/latency_p50_ms", "vs_teacher/speedup")
SHOWN = 20
_uri = click.option(
    "--tracking-uri", metavar="URI", help="MLflow store (default: MLFLOW_TRACKING_URI, else mlruns/mlflow.db)."
)
_json = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
_yes = click.option("--yes", "-y", is_flag=True, help="Do not ask for confirmation.")
_dry = click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")


@click.group(cls=Verbs)
def command() -> None:
    """Manage the runs of the MLflow store: list, show, delete, export and import them.

    \b
      compress runs list --limit 10
    """


command.add_command(sync_command, "sync")


@command.command("list", short_help="List runs, newest first.")
@click.option("--experiment", metavar="NAME", help="Show only this experiment.")
@click.option("--limit", type=IntRange(1, 1000), default=50, show_default=True, help="Maximum number of runs.")
@click.option("--deleted", is_flag=True, help="Show deleted runs, which `compress runs gc` removes permanently.")
@_uri
@_json
@debug_option
def list_(experiment: str | None, limit: int, deleted: bool, tracking_uri: str | None, as_json: bool) -> None:
    """List runs, newest first; a run whose process has died has the status dead."""
    import dataclasses

    from compress.report.rows import format_figure, title
    from compress.tracking.listing import list_runs

    console, store = _open(tracking_uri, as_json)
    found = list_runs(store, experiment, limit + 1, deleted=deleted)  # one more, to know whether there are more
    rows = found[:limit]
    table = []
    for r in rows:
        value = r.metrics.get(f"quality/{r.metric}")
        quality = "" if value is None else f"{title(r.metric)} {format_figure(r.metric, value)}"
        figures = (r.metrics.get(c, "") for c in COLUMNS)
        table.append([r.run_id[:8], r.name, r.experiment, r.role, r.status, quality, *figures])
    console.table("", ["id", "name", "experiment", "role", "status", "quality", *COLUMNS], table)
    if as_json:
        console.document([dataclasses.asdict(r) for r in rows])
    if not rows:
        which = "deleted runs" if deleted else "runs"
        console.note(f"there are no {which}" + (f" in experiment {experiment}" if experiment else ""))
    elif len(found) > limit:
        console.note(f"the newest {format_count(limit, 'run')}; --limit shows more")


@command.command(short_help="Show the parameters and metrics of a run.")
@click.argument("run")
@_uri
@_json
@debug_option
def show(run: str, tracking_uri: str | None, as_json: bool) -> None:
    """Show the parameters and metrics of RUN: an id, its first characters, or a name."""
    import dataclasses

    from compress.tracking.listing import find_run

    console, store = _open(tracking_uri, as_json)
    row = find_run(store, run)
    facts = {"id": row.run_id, "experiment": row.experiment, "role": row.role, "method": row.method}
    facts |= {"status": row.status, "folder": row.folder}
    facts |= {"imported from": row.imported_from} if row.imported_from else {}
    console.table(row.name, ["what", "value"], [[k, v] for k, v in facts.items()])
    console.table("parameters", ["name", "value"], sorted(row.params.items()))
    console.table("metrics", ["name", "value"], sorted(row.metrics.items()))
    console.document(dataclasses.asdict(row))


@command.command(short_help="Delete runs and their child runs.")
@click.argument("runs", nargs=-1, required=True)
@_yes
@_dry
@_uri
@_json
@debug_option
def delete(runs: tuple[str, ...], yes: bool, dry_run: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Delete RUNS (ids, their first characters, or names) and their child runs.

    Deleted runs are hidden in lists and on the MLflow page; "State: Deleted" on the page shows and restores them. Their
    files stay until `compress runs gc`; the run's own folder is never changed.
    """
    from compress.storage.atomic import human_bytes
    from compress.tracking import deleting

    console, store = _open(tracking_uri, as_json)
    found = deleting.find_runs_to_delete(store, runs)
    size = sum(one.bytes or 0 for one in found)
    table = [
        [
            one.row.run_id[:8],
            ("  " if one.below else "") + one.row.name,
            one.row.experiment,
            one.models,
            "elsewhere" if one.bytes is None else human_bytes(one.bytes),
            ", ".join(one.versions),
        ]
        for one in found
    ]
    console.table("to be deleted", ["id", "run", "experiment", "models", "files", "registered as"], table)
    ids = [one.row.run_id for one in found]
    if dry_run:
        console.document({"deleted": [], "would_delete": ids, "bytes": size})
        return
    _ask(f"delete {format_count(len(found), 'run')}?", yes)
    done = deleting.delete(store, found)
    console.result(
        f"deleted {done} of {len(found)}; {human_bytes(size)} of files can be removed with `compress runs gc`"
    )
    console.document({"deleted": ids, "bytes": size})


@command.command(short_help="Permanently remove deleted runs and unused artifacts.")
@click.option(
    "--older-than",
    type=FloatRange(0),
    default=0.0,
    metavar="DAYS",
    help="Remove only what was deleted at least DAYS ago.",
)
@_yes
@_dry
@_uri
@_json
@debug_option
def gc(older_than: float, yes: bool, dry_run: bool, tracking_uri: str | None, as_json: bool) -> None:
    """Permanently remove deleted runs, and artifacts that belong to no run.

    Removes the records of deleted runs, models and experiments, their files, and artifact folders that the store does
    not reference. A deleted run whose model is registered is kept.
    """
    from compress.storage.atomic import human_bytes
    from compress.tracking import collecting

    console, store = _open(tracking_uri, as_json)
    found = collecting.garbage(store, older_than)
    for line in found.kept:
        console.note(line)
    rows = [[one.kind, one.id, one.name, human_bytes(one.bytes)] for one in found.gone]
    if rows:
        console.table("to be removed permanently", ["what", "id", "name", "files"], rows[:SHOWN])
    if len(rows) > SHOWN:
        console.result(f"  and {len(rows) - SHOWN} more")
    told = {"gone": [[one.kind, one.id, one.name, one.bytes] for one in found.gone], "kept": found.kept}
    if dry_run or not found.gone:
        console.result(f"{len(found.gone)} to remove, {human_bytes(found.bytes)}")
        console.document({**told, "freed": 0})
        return
    _ask(f"permanently remove {len(found.gone)}, {human_bytes(found.bytes)}?", yes)
    freed = collecting.collect(store, found)
    console.result(f"freed {human_bytes(freed)}")
    console.document({**told, "freed": freed})


@command.command(short_help="Update the paths in the store after a move.")
@click.argument("old", required=False, type=click.Path(path_type=Path))
@click.argument("new", required=False, type=click.Path(path_type=Path))
@_yes
@_dry
@_uri
@_json
@debug_option
def relocate(
    old: Path | None, new: Path | None, yes: bool, dry_run: bool, tracking_uri: str | None, as_json: bool
) -> None:
    """Update the artifact paths in the store after the project folder was moved from OLD to NEW.

    MLflow stores absolute paths. OLD is detected from them if it is not given; the default of NEW is the folder of the
    store. All paths change in one transaction, and the database is backed up first.
    """
    from compress.tracking import relocating

    console, store = _open(tracking_uri, as_json)
    move = relocating.plan(store, old, new)
    console.table(f"{move.old} → {move.new}", ["column", "paths"], sorted(move.changes.items()))
    if move.missing:
        names = ", ".join(move.missing[:3])
        console.warn(f"the new location has no files of {len(move.missing)} models ({names}); check that it is correct")
    if move.elsewhere:
        console.note(f"unchanged: paths in {', '.join(move.elsewhere[:3])}")
    told = {"old": str(move.old), "new": str(move.new), "changes": move.changes, "missing": move.missing}
    if dry_run:
        console.document({**told, "backup": None})
        return
    _ask(f"change {move.count} paths?", yes)
    kept = relocating.relocate(store, move)
    console.result(f"changed {move.count} paths; backup of the store: {kept}")
    console.document({**told, "backup": str(kept)})


@command.command("export", short_help="Export runs, with their files and models, to a new folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@click.argument("runs", nargs=-1)
@click.option("--experiment", metavar="NAME", help="Export all runs of this experiment.")
@_uri
@_json
@debug_option
def export_(
    folder: Path, runs: tuple[str, ...], experiment: str | None, tracking_uri: str | None, as_json: bool
) -> None:
    """Export RUNS (default: all) and their child runs, with files and models, to the new FOLDER.

    `compress runs import FOLDER` imports them on another machine. The manifest contains a checksum of every file.
    Registered versions and aliases are not exported: promote the models again.
    """
    from compress.tracking.archive import export_runs

    if runs and experiment:
        raise UserError("give RUNS or --experiment, not both", where="--experiment")
    console, store = _open(tracking_uri, as_json)
    done = export_runs(store, runs, experiment, folder, console.note)
    for line in done.left_out:
        console.warn(line)
    console.result(f"wrote {format_count(done.runs, 'run')} and {format_count(done.models, 'model')} to {done.folder}")
    console.document({"folder": str(done.folder), "runs": done.runs, "models": done.models, "left_out": done.left_out})


@command.command("import", short_help="Import the runs of an exported folder.")
@click.argument("folder", type=click.Path(path_type=Path))
@_uri
@_json
@debug_option
def import_(folder: Path, tracking_uri: str | None, as_json: bool) -> None:
    """Import the runs that `compress runs export` wrote to FOLDER; runs that the store already has are skipped.

    The store assigns new ids; `compress runs show` also finds them by their old ids.
    """
    import dataclasses

    from compress.tracking.importing import import_runs

    console, store = _open(tracking_uri, as_json)
    done = import_runs(store, folder, console.note)
    left = [one for one in done if one.why_not]
    for one in left[:SHOWN]:
        console.note(f"run {one.name} ({one.archived[:8]}) is skipped: {one.why_not}")
    if len(left) > SHOWN:
        console.note(f"and {len(left) - SHOWN} more")
    console.result(f"imported {format_count(len(done) - len(left), 'run')}, skipped {len(left)}")
    console.document([dataclasses.asdict(one) for one in done])


def _open(tracking_uri: str | None, as_json: bool) -> tuple[Console, Store]:
    from compress.console import Console
    from compress.tracking.store import resolve_store

    console = Console(json=as_json)
    console.listen()
    return console, resolve_store(tracking_uri)


def _ask(question: str, yes: bool) -> None:
    """Ask the person at the terminal; UserError where nobody can be asked, or they say no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UserError("confirmation needs a terminal", where=question, do="add --yes", code=ExitCode.REFUSED)
    if not click.confirm(question, err=True):
        raise UserError("nothing was changed", code=ExitCode.REFUSED)
