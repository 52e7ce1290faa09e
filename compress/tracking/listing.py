"""Lists the runs of a store for the command line and builds links to the MLflow page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import UserError, did_you_mean, printable
from compress.storage.lock import status as lock_status
from compress.tracking import records as rec
from compress.tracking.models import FROM_TAG, KEY_TAG
from compress.tracking.reading import ListedRun, Reader, StoredRun
from compress.tracking.store import Store, open_client
from compress.tracking.view import newest_view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run


@dataclass(frozen=True)
class Page:
    """What a deep link needs: the experiment, and our saved view in it if there is one.

    charts: whether the view opens on its charts, not on its table.
    """

    experiment_id: str
    experiment: str
    view: str | None
    charts: bool = True


@dataclass(frozen=True)
class RunRow:
    """One run. status: the store's, or `dead (…)` for a run whose process is gone; `compress sync` ends it.

    metric: the one that decides its task, empty where nothing was measured.  imported_from: its id in the store that it
    was exported from.
    """

    run_id: str
    name: str
    experiment: str
    role: str
    method: str
    status: str
    started_ms: int
    folder: str
    metrics: dict[str, float]
    params: dict[str, str]
    metric: str
    imported_from: str = ""


def find_page(store: Store, experiment: str | None = None) -> Page | None:
    """The page of the experiment, or of the newest run; None when there is no run of ours. UserError: no such one."""
    client = open_client(store)
    found = experiment_named(client, experiment) if experiment else _newest(client)
    if found is None:
        return None
    return Page(found.experiment_id, found.name, newest_view(found.tags))


def list_runs(store: Store, experiment: str | None = None, limit: int = 50, *, deleted: bool = False) -> list[RunRow]:
    """Runs, the newest first; `limit` at most. deleted: those that were deleted and not yet removed for good."""
    reader = Reader(store)
    return [_row(run) for run in reader.runs(_among(reader, experiment, deleted=deleted)[:limit])]


def find_run(store: Store, name: str, experiment: str | None = None) -> RunRow:
    """The newest run with this id, or this name, of the experiment if one is named. UserError when there is none."""
    reader = Reader(store)
    listed, imported = _among(reader, experiment, deleted=False), reader.read_tag_values(FROM_TAG)
    for run in listed:
        ids = [one for one in (run.run_id, imported.get(run.run_id)) if one]
        if name in ids or run.name == name or (len(name) >= 6 and any(one.startswith(name) for one in ids)):
            return _row(*reader.runs([run]))
    hint = did_you_mean(name, {r.name for r in listed})
    raise UserError(f"no run '{printable(name, 80)}' in {store.shown}", do=hint)


def _among(reader: Reader, experiment: str | None, *, deleted: bool) -> list[ListedRun]:
    """The runs of the experiment, else of all that are not deleted, the newest first."""
    gone = reader.experiments()
    if experiment is not None and experiment not in gone:
        raise _no_experiment(experiment, gone)
    return [
        run
        for run in reader.list_runs()
        if run.deleted == deleted and (run.experiment == experiment if experiment else not gone[run.experiment])
    ]


def experiment_named(client: MlflowClient, name: str) -> Experiment:
    """The experiment; UserError with the nearest when there is none."""
    found = client.get_experiment_by_name(name)
    if found is None:
        raise _no_experiment(name, {e.name: False for e in all_experiments(client)})
    return found


def _no_experiment(name: str, known: Mapping[str, bool]) -> UserError:
    """known: name of an experiment → whether it was deleted."""
    hint = did_you_mean(name, [one for one, gone in known.items() if not gone])
    return UserError(f"no experiment '{printable(name, 80)}' in the store", where="--experiment", do=hint)


def all_experiments(client: MlflowClient) -> Sequence[Experiment]:
    """The experiments that are not deleted."""
    return client.search_experiments(max_results=1000)


def _newest(client: MlflowClient) -> Experiment | None:
    experiments = {e.experiment_id: e for e in all_experiments(client)}
    if not experiments:
        return None
    runs = client.search_runs(
        list(experiments),
        filter_string=f"tags.`{KEY_TAG}` LIKE '%'",
        order_by=["attributes.start_time DESC"],
        max_results=1,
    )
    return experiments[runs[0].info.experiment_id] if runs else None


def row_of(run: Run, experiments: dict[str, str]) -> RunRow:
    """A run of the client as a row. experiments: names by id."""
    info, said = run.info, run.data
    name, where = info.run_name or info.run_id, experiments.get(info.experiment_id, "")
    begun = int(info.start_time or 0)
    place, figures = info.artifact_uri or "", (said.metrics, said.params, said.tags)
    return _row(StoredRun(info.run_id, name, where, begun, place, *figures, info.status))


def _row(run: StoredRun) -> RunRow:
    folder = run.tags.get("compress.folder", "")
    return RunRow(
        run_id=run.run_id,
        name=run.name,
        experiment=run.experiment,
        role=run.tags.get("compress.role", ""),
        method=run.tags.get("compress.method", ""),
        status=_status(run.status, folder),
        started_ms=run.started_ms,
        folder=folder,
        metrics=dict(run.metrics),
        params=dict(run.params),
        metric=run.tags.get("measured.metric", ""),
        imported_from=run.tags.get(FROM_TAG, ""),
    )


def _status(status: str, folder: str) -> str:
    """A run that was killed stands as RUNNING in the store for ever: whether it lives is asked of its folder's lock."""
    if status != rec.RUNNING or not folder or not (Path(folder) / rec.FOLDER).is_dir():
        return status
    now = lock_status(Path(folder) / rec.FOLDER)
    if now.state == "dead" and now.holder is not None:
        return f"dead ({now.holder.host}, process {now.holder.pid})"
    return status
