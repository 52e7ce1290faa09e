"""Finds what `compress runs gc` removes: deleted runs and models, and artifact folders that no run refers to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from compress.errors import UserError
from compress.storage.trees import remove_tree, tree_bytes
from compress.tracking.places import ARTIFACTS, local_path, open_own_database, rows, shrink
from compress.tracking.store import Store, open_client, short

_RUN = re.compile(r"[0-9a-f]{32}")
_MODEL = re.compile(r"m-[0-9a-f]{32}")
DAY_MS = 24 * 3600 * 1000


@dataclass(frozen=True)
class Removal:
    """Something to remove. kind: run, model, experiment (their rows and files) or orphan (files alone).

    path: its folder; None where it has none here.
    """

    kind: str
    id: str
    name: str
    path: Path | None
    bytes: int


@dataclass(frozen=True)
class Garbage:
    """gone: what is to be removed.  kept: sentences on what stays though its run was deleted."""

    gone: list[Removal]
    kept: list[str]

    @property
    def bytes(self) -> int:
        return sum(one.bytes for one in self.gone)


def garbage(store: Store, older_than_days: float = 0.0) -> Garbage:
    """What `collect` would remove: runs, models and experiments that were deleted at least so long ago, and folders of
    artifacts that belong to none. A deleted run whose model is a version in the registry stays. Changes nothing."""
    database = open_own_database(store, "compress runs gc")
    root = database.parent / ARTIFACTS
    folders = list(_folders(root))  # before the rows are read: a run that begins now has its row first
    before = int(time.time() * 1000 - older_than_days * DAY_MS)
    versions = rows(database, "SELECT name, version, run_id, source, storage_location FROM model_versions")
    held = {str(run): f"{name}/{version}" for name, version, run, *_ in versions if run}
    sources = " ".join(str(text) for *_, source, place in versions for text in (source, place) if text)
    gone: list[Removal] = []
    kept: list[str] = []
    runs = rows(database, "SELECT run_uuid, name, artifact_uri, lifecycle_stage, deleted_time FROM runs")
    leaving: set[str] = set()
    for run, name, place, stage, when in runs:
        if stage != "deleted" or (when or 0) > before:
            continue
        if run in held:
            kept.append(f"run {name} is kept: its model is version {held[run]} of the registry")
            continue
        leaving.add(run)
        gone.append(_gone("run", run, name, place, root))
        if gone[-1].path is None and (elsewhere := local_path(place or "")) is not None and elsewhere.is_dir():
            kept.append(f"files of run {name} are kept: {elsewhere} is not inside {root}")
    models = rows(
        database,
        "SELECT model_id, name, artifact_location, lifecycle_stage, last_updated_timestamp_ms, source_run_id "
        "FROM logged_models",
    )
    for model, name, place, stage, when, run in models:
        if run in leaving or (stage == "deleted" and (when or 0) <= before):
            if model in sources:
                kept.append(f"model {name} is kept: a registered version refers to it")
                continue
            gone.append(_gone("model", model, name, place, root))
    known = {run for run, *_ in runs} | {model for model, *_ in models}
    places = [p for *_, p in _places(runs, models, versions)]
    gone += [
        Removal("orphan", folder.name, "", folder, tree_bytes(folder))
        for folder in folders
        if folder.name not in known and not any(p.is_relative_to(folder) for p in places)
    ]
    gone += _experiments(database, leaving)
    return Garbage(gone, kept)


def collect(store: Store, found: Garbage) -> int:
    """Remove it for good, rows first, so that what a kill leaves is an orphan; returns the bytes of files."""
    database = open_own_database(store, "compress runs gc")
    root = database.parent / ARTIFACTS
    tables = open_client(store)._tracking_client.store
    removals = {
        "model": "_hard_delete_logged_model",
        "run": "_hard_delete_run",
        "experiment": "_hard_delete_experiment",
    }
    freed = 0
    for kind in (*removals, "orphan"):
        for one in (g for g in found.gone if g.kind == kind):
            if kind in removals:
                _forget(getattr(tables, removals[kind]), one.id)
            if one.path is not None:
                freed += remove_tree(one.path, root)
    shrink(database)
    return freed


def _forget(remove, identity: str) -> None:
    try:
        remove(identity)
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":  # gone meanwhile
            raise UserError("cannot be removed from the store", where=identity, why=short(error)) from error


def _folders(root: Path) -> Iterable[Path]:
    """Folders that look like those of a run or a model, by the names that MLflow gives them."""
    for experiment in _inside(root):
        for folder in _inside(experiment):
            if _RUN.fullmatch(folder.name):
                yield folder
            elif folder.name == "models":
                yield from (f for f in _inside(folder) if _MODEL.fullmatch(f.name))


def _inside(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink())


def _gone(kind: str, identity: str, name: str, place: str, root: Path) -> Removal:
    """Its folder is `…/<id>`, above the `artifacts` that the store names; files elsewhere are not ours to remove."""
    path = local_path(place or "")
    if path is not None:
        path = path.parent if path.name == "artifacts" and path.parent.name == identity else path
    if path is None or root not in path.parents or path.name != identity or not path.is_dir():
        return Removal(kind, identity, name or "", None, 0)
    return Removal(kind, identity, name or "", path, tree_bytes(path))


def _places(runs: list, models: list, versions: list) -> Iterable[tuple[str, Path]]:
    """Every folder on this machine that a row of the store speaks of."""
    told = [(run, place) for run, _, place, *_ in runs] + [(model, place) for model, _, place, *_ in models]
    told += [(name, place) for name, _, _, *both in versions for place in both]
    for owner, place in told:
        path = local_path(place or "")
        if path is not None:
            yield owner, path


def _experiments(database: Path, leaving: set[str]) -> list[Removal]:
    """Deleted experiments in which no run or model is left."""
    deleted = rows(database, "SELECT experiment_id, name FROM experiments WHERE lifecycle_stage = 'deleted'")
    found = []
    for identity, name in deleted:
        runs = {r for (r,) in rows(database, f"SELECT run_uuid FROM runs WHERE experiment_id = {int(identity)}")}
        of_models = f"SELECT source_run_id FROM logged_models WHERE experiment_id = {int(identity)}"
        if runs <= leaving and all(run in leaving for (run,) in rows(database, of_models)):
            found.append(Removal("experiment", str(identity), name, None, 0))
    return found
