"""What the store knows, for the command line: runs, and the page that shows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.durable.lock import status as lock_status
from compress.errors import UserError, did_you_mean, printable
from compress.tracking import records as rec
from compress.tracking.models import FROM_TAG, KEY_TAG
from compress.tracking.store import Store, open_client
from compress.tracking.view import PREFIX, TAG

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
    return Page(found.experiment_id, found.name, _newest_view(found.tags))


def list_runs(store: Store, experiment: str | None = None, limit: int = 50, *, deleted: bool = False) -> list[RunRow]:
    """Runs, the newest first; `limit` at most. deleted: those that were deleted and not yet removed for good."""
    client = open_client(store)
    where = [experiment_named(client, experiment)] if experiment else all_experiments(client)
    names = {e.experiment_id: e.name for e in where}
    if not names:
        return []
    from mlflow.entities import ViewType

    stage = ViewType.DELETED_ONLY if deleted else ViewType.ACTIVE_ONLY
    newest_first = ["attributes.start_time DESC"]
    runs = client.search_runs(list(names), run_view_type=stage, order_by=newest_first, max_results=limit)
    return [row_of(run, names) for run in runs]


def find_run(store: Store, name: str, experiment: str | None = None) -> RunRow:
    """The newest run with this id, or this name, of the experiment if one is named. UserError when there is none."""
    rows = list_runs(store, experiment, limit=1000)
    for row in rows:
        ids = [one for one in (row.run_id, row.imported_from) if one]
        if name in ids or row.name == name or (len(name) >= 6 and any(one.startswith(name) for one in ids)):
            return row
    hint = did_you_mean(name, {r.name for r in rows})
    raise UserError(f"no run '{printable(name, 80)}' in {store.shown}", do=hint)


def experiment_named(client: MlflowClient, name: str) -> Experiment:
    """The experiment; UserError with the nearest when there is none."""
    found = client.get_experiment_by_name(name)
    if found is None:
        hint = did_you_mean(name, [e.name for e in all_experiments(client)])
        raise UserError(f"no experiment '{printable(name, 80)}' in the store", where="--experiment", do=hint)
    return found


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


def _newest_view(tags: Mapping[str, str]) -> str | None:
    made: dict[str, int] = {}
    for tag, value in tags.items():
        if tag.startswith(TAG + PREFIX):
            try:
                made[tag.removeprefix(TAG)] = int(json.loads(value)["createdAt"])
            except (ValueError, KeyError, TypeError):
                continue  # not as we wrote it
    return max(made, key=lambda v: made[v]) if made else None


def row_of(run: Run, experiments: dict[str, str]) -> RunRow:
    """One run as a row. experiments: names by id."""
    tags: dict[str, Any] = run.data.tags
    folder = tags.get("compress.folder", "")
    return RunRow(
        run_id=run.info.run_id,
        name=run.info.run_name or run.info.run_id,
        experiment=experiments.get(run.info.experiment_id, ""),
        role=tags.get("compress.role", ""),
        method=tags.get("compress.method", ""),
        status=_status(run.info.status, folder),
        started_ms=int(run.info.start_time or 0),
        folder=folder,
        metrics=dict(run.data.metrics),
        params=dict(run.data.params),
        metric=tags.get("measured.metric", ""),
        imported_from=tags.get(FROM_TAG, ""),
    )


def _status(status: str, folder: str) -> str:
    """A run that was killed stands as RUNNING in the store for ever: whether it lives is asked of its folder's lock."""
    if status != rec.RUNNING or not folder or not (Path(folder) / rec.FOLDER).is_dir():
        return status
    now = lock_status(Path(folder) / rec.FOLDER)
    if now.state == "dead" and now.holder is not None:
        return f"dead ({now.holder.host}, process {now.holder.pid})"
    return status
