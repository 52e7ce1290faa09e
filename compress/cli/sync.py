"""Send to MLflow what a dead server or a killed run kept from it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from compress.cli._help import Command
from compress.cli.main import debug_option

if TYPE_CHECKING:
    from compress.tracking import Synced


@click.command(cls=Command)
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--tracking-uri", metavar="URI", help="MLflow store; not given: MLFLOW_TRACKING_URI, else the run's own.")
@click.option("--json", "as_json", is_flag=True, help="The result as one JSON document.")
@debug_option
def command(folder: Path, tracking_uri: str | None, as_json: bool) -> None:
    """Send to MLflow what is only in the journal of the runs in FOLDER and below.

    Doing it twice changes nothing. A run whose process was killed becomes KILLED; one that still runs is left alone.
    """
    import dataclasses

    from compress.console import Console
    from compress.tracking.sync import sync

    console = Console(json=as_json)
    done = sync(folder, uri=tracking_uri, warn=console.warn)
    rows = [[str(s.folder), s.name, _status(s), s.sent, s.refused] for s in done]
    console.table("", ["folder", "run", "status", "records sent", "refused"], rows)
    console.document([dataclasses.asdict(s) for s in done])


def _status(one: Synced) -> str:
    return "left alone: it still runs" if one.live else one.status
