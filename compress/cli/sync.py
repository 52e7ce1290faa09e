"""Upload runs that could not be sent to MLflow."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli.main import debug_option

if TYPE_CHECKING:
    from compress.tracking import SyncedRun


@click.command(cls=Command)
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--tracking-uri", metavar="URI", help="MLflow store (default: MLFLOW_TRACKING_URI, else the run's own).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON document.")
@debug_option
def command(folders: tuple[Path, ...], tracking_uri: str | None, as_json: bool) -> None:
    """Upload the records of the runs in each FOLDER and its subfolders that MLflow does not have.

    \b
      compress sync runs

    Running it again changes nothing. A run whose process was killed is marked KILLED; one that is still running is
    skipped.
    """
    import dataclasses

    from compress.console import Console
    from compress.tracking.sync import sync

    console = Console(json=as_json)
    done = sync(*folders, uri=tracking_uri, warn=console.warn)
    rows = [[str(s.folder), s.name, _status(s), s.sent, s.refused] for s in done]
    console.table("", ["folder", "run", "status", "records sent", "rejected"], rows)
    console.document([dataclasses.asdict(s) for s in done])


def _status(one: SyncedRun) -> str:
    return "skipped: still running" if one.live else one.status
