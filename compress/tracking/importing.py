"""`compress runs import`: copies the runs of an archive into a store under new ids, each run once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.errors import ExitCode, UserError, printable
from compress.storage import atomic, manifest
from compress.tracking.archiveformat import INDEX, VERSION, Dataset, Index, ModelFile, RunFile, read
from compress.tracking.batch import METRICS_PER_CALL, TEXTS_PER_CALL
from compress.tracking.listing import all_experiments
from compress.tracking.models import FROM_TAG, KEY_TAG, VERSIONS_TAG, patience
from compress.tracking.replay import ensure_experiment
from compress.tracking.store import Store, open_client
from compress.tracking.view import PREFIX, TAG

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

STATE_TAG = "compress.import"
_BEGUN, _DONE = "begun", "done"
_PARENTS = ("mlflow.parentRunId", "compress.parent_run")

Say = Callable[[str], None]


@dataclass(frozen=True)
class ImportedRun:
    """One run of the archive. run_id: in this store.  why_not: it was left out because of this."""

    archived: str
    name: str
    run_id: str
    why_not: str = ""


def import_runs(store: Store, source: Path, say: Say = lambda _: None) -> list[ImportedRun]:
    """Make the runs of an archive in the store; a run that is there already is left out and said.

    Ids are the store's own; the tag `compress.imported_from` holds the old one, and `compress runs show` knows both.
    An import that was interrupted begins its last run anew. Raises UserError, before anything is made, for a folder
    that is no archive, is damaged, or holds files that its manifest does not list.
    """
    index = _checked(source)
    client = open_client(store)
    experiments = [e.experiment_id for e in all_experiments(client)]
    ids: dict[str, str] = {}
    done = []
    for number, identity in enumerate(index.runs, 1):
        told = read(source / "runs" / f"{identity}.json", RunFile)
        name = printable(told.name, 250)
        there = _there(client, experiments, told)
        if there is not None:
            ids[identity] = there
            done.append(ImportedRun(identity, name, there, "the store already has it"))
            continue
        where = ensure_experiment(client, store, told.experiment, None)
        for tag, value in index.experiments.get(told.experiment, {}).items():
            if tag.startswith(TAG + PREFIX):
                client.set_experiment_tag(where, tag, value)
        if where not in experiments:
            experiments.append(where)
        ids[identity] = _make(client, where, told, ids, source)
        done.append(ImportedRun(identity, name, ids[identity]))
        if number % 100 == 0:
            say(f"{number} of {len(index.runs)} runs")
    return done


def _checked(source: Path) -> Index:
    """The index of a whole archive, all of whose files can be read."""
    if not (source / INDEX).is_file():
        raise UserError("not an archive of runs", where=str(source), why=f"it contains no {INDEX}")
    reasons = atomic.verify_folder(source)
    if reasons:
        raise UserError("the archive is damaged", where=str(source), why=reasons[0], code=ExitCode.DATA)
    others = manifest.find_unlisted(source)
    if others:
        why = f"its manifest does not list {printable(others[0], 100)}"
        raise UserError(
            "the archive contains files that are not in its manifest", where=str(source), why=why, code=ExitCode.DATA
        )
    index = read(source / INDEX, Index)
    if index.version > VERSION:
        why = f"its format version is {index.version}; this program supports up to {VERSION}"
        raise UserError("the archive was written by a newer version", where=str(source), why=why, do="upgrade compress")
    for identity in index.runs:
        for model in read(source / "runs" / f"{identity}.json", RunFile).models:
            read(source / "models" / f"{model}.json", ModelFile)
    return index


def _there(client: MlflowClient, experiments: list[str], told: RunFile) -> str | None:
    """The id of this very run in the store: it came from here, was imported before, or was sent by its journal."""
    from mlflow.entities import ViewType

    try:
        return client.get_run(told.id).info.run_id
    except Exception as error:
        if getattr(error, "error_code", None) != "RESOURCE_DOES_NOT_EXIST":
            raise
    if not experiments:
        return None
    key = told.tags.get(KEY_TAG, "")
    queries = [f"tags.`{FROM_TAG}` = '{told.id}'"]
    queries += [f"tags.`{KEY_TAG}` = '{key}'"] if key.isalnum() else []
    for query in queries:
        for run in client.search_runs(experiments, query, run_view_type=ViewType.ACTIVE_ONLY, max_results=10):
            if run.data.tags.get(STATE_TAG) != _BEGUN:
                return run.info.run_id
            client.delete_run(run.info.run_id)  # an import that was interrupted
    return None


def _make(client: MlflowClient, experiment: str, told: RunFile, ids: Mapping[str, str], source: Path) -> str:
    tags = {key: value for key, value in told.tags.items() if key not in _PARENTS}
    tags |= {key: ids[told.tags[key]] for key in _PARENTS if told.tags.get(key) in ids}
    own = {**tags, FROM_TAG: told.id, STATE_TAG: _BEGUN}
    run = client.create_run(experiment, start_time=told.start_time, run_name=told.name, tags=own)
    run_id = run.info.run_id
    _params(client, run_id, told.params)
    _datasets(client, run_id, told.datasets)
    _points(client, run_id, [_metric(run_id, point) for point in told.metrics])
    files = source / "runs" / told.id
    if files.is_dir():
        with patience():
            client.log_artifacts(run_id, str(files))
    for identity in told.models:
        _model(client, experiment, run_id, source, identity)
    client.set_tag(run_id, STATE_TAG, _DONE)
    ended = told.status not in ("RUNNING", "SCHEDULED")  # one that ran is not run on here
    client.set_terminated(run_id, status=told.status if ended else "KILLED", end_time=told.end_time)
    return run_id


def _params(client: MlflowClient, run_id: str, params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(key, value) for key, value in params.items()]
    for i in range(0, len(rows), TEXTS_PER_CALL):
        client.log_batch(run_id, params=rows[i : i + TEXTS_PER_CALL])


def _datasets(client: MlflowClient, run_id: str, datasets: Sequence[Dataset]) -> None:
    from mlflow import entities

    rows = []
    for d in datasets:
        tags = [entities.InputTag(key, value) for key, value in d.tags.items()]
        of_store = entities.Dataset(d.name, d.digest, d.source_type or "local", d.source or "{}")
        rows.append(entities.DatasetInput(of_store, tags))
    if rows:
        client.log_inputs(run_id, rows)


def _metric(run_id: str, point: Sequence[Any], **of_model: Any) -> Metric:
    from mlflow.entities import Metric

    key, value, time, step = point[:4]
    return Metric(key, value, time, step, run_id=run_id, **of_model)


def _points(client: MlflowClient, run_id: str, points: Sequence[Metric]) -> None:
    for i in range(0, len(points), METRICS_PER_CALL):
        client.log_batch(run_id, metrics=points[i : i + METRICS_PER_CALL])


def _model(client: MlflowClient, experiment: str, run_id: str, source: Path, identity: str) -> None:
    from mlflow.entities import LoggedModelOutput

    told = read(source / "models" / f"{identity}.json", ModelFile)
    tags = {key: value for key, value in told.tags.items() if key != VERSIONS_TAG}  # of the other store's registry
    made = client.create_logged_model(
        experiment_id=experiment,
        name=told.name,
        source_run_id=run_id,
        tags={**tags, FROM_TAG: identity},
        params=told.params,
        model_type=told.model_type,
    )
    files = source / "models" / identity
    if files.is_dir():
        with patience():
            client.log_model_artifacts(made.model_id, str(files))
    client.finalize_logged_model(made.model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(made.model_id, step=0)])
    points = []
    for point in told.metrics:
        of_data = {"dataset_name": point[4], "dataset_digest": point[5]} if point[4] else {}
        points.append(_metric(run_id, point, model_id=made.model_id, **of_data))
    _points(client, run_id, points)
