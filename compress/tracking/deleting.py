"""Deletes runs: marks them and their child runs as deleted; `compress runs gc` frees the disk space."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import ExitCode, UserError
from compress.storage.lock import status as lock_status
from compress.storage.trees import tree_bytes
from compress.tracking import records as rec
from compress.tracking.listing import RunRow, all_experiments, find_run, row_of
from compress.tracking.places import local_path
from compress.tracking.store import Store, open_client

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

_BELOW = "mlflow.parentRunId"
_MOST = 1000


@dataclass(frozen=True)
class RunToDelete:
    """A run that is to go. below: it goes because a run above it does.  bytes: of its artifacts and models on this
    machine; None where they lie elsewhere.  models: logged models.  versions: `name/3` of the registry."""

    row: RunRow
    below: bool
    bytes: int | None
    models: int
    versions: tuple[str, ...] = ()


def find_runs_to_delete(store: Store, names: Sequence[str]) -> list[RunToDelete]:
    """The runs with these ids, begins of ids or names, and all runs below them, each once.

    Raises UserError for a name that no run has, for a run that still runs, and for one whose model holds an alias of
    the registry.
    """
    named = [find_run(store, name).run_id for name in names]
    client = open_client(store)
    experiments = {e.experiment_id: e.name for e in all_experiments(client)}
    found: dict[str, RunToDelete] = {}
    for run_id in named:
        asked = client.get_run(run_id)
        for place, run in enumerate(with_children(client, asked, list(experiments))):
            if run.info.run_id not in found:
                found[run.info.run_id] = _doom(client, run, experiments, below=place > 0)
    return list(found.values())


def delete(store: Store, runs: Sequence[RunToDelete]) -> int:
    """Mark them as deleted, those below first; how many were there still."""
    client = open_client(store)
    done = 0
    for one in reversed(runs):
        try:
            client.delete_run(one.row.run_id)
            done += 1
        except Exception as error:  # another process deleted it meanwhile: that is what was asked for
            if getattr(error, "error_code", None) not in ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"):
                raise
    return done


def with_children(client: MlflowClient, run: Run, experiments: list[str]) -> list[Run]:
    """The run, then all below it; a chain that leads back to itself ends."""
    found = {run.info.run_id: run}
    waiting = [run.info.run_id]
    while waiting:
        above = waiting.pop()
        query = f"tags.`{_BELOW}` = '{above}'"
        for child in client.search_runs(experiments, query, max_results=_MOST):
            if child.info.run_id not in found:
                found[child.info.run_id] = child
                waiting.append(child.info.run_id)
    return list(found.values())


def _doom(client: MlflowClient, run: Run, experiments: dict[str, str], *, below: bool) -> RunToDelete:
    row = row_of(run, experiments)
    _refuse_live(row)
    versions = client.search_model_versions(f"run_id = '{run.info.run_id}'")
    for version in versions:
        aliases = [
            a for a, v in client.get_registered_model(version.name).aliases.items() if str(v) == str(version.version)
        ]
        if aliases:
            raise UserError(
                f"its model is version {version.version} of '{version.name}', alias {', '.join(aliases)}",
                where=f"run {row.name}",
                do=f"promote another model first: compress promote MODEL --name {version.name} --as {aliases[0]} "
                "--replace",
                code=ExitCode.REFUSED,
            )
    models = [m.model_id for m in (run.outputs.model_outputs if run.outputs else [])]
    places = [run.info.artifact_uri, *(client.get_logged_model(m).artifact_location for m in models)]
    sizes = [_size(place) for place in places if place]
    known = [size for size in sizes if size is not None]
    named = tuple(f"{v.name}/{v.version}" for v in versions)
    return RunToDelete(row, below, sum(known) if len(known) == len(sizes) else None, len(models), named)


def _refuse_live(row: RunRow) -> None:
    if row.status == rec.RUNNING and row.folder and lock_status(Path(row.folder) / rec.FOLDER).state == "running":
        raise UserError(
            "the run is still in progress",
            where=f"run {row.name}",
            do="stop it first, or wait for it",
            code=ExitCode.REFUSED,
        )


def _size(place: str) -> int | None:
    path = local_path(place)
    return None if path is None else tree_bytes(path)
