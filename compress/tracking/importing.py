"""`compress runs import`: copies the runs of an archive into a store under new ids, each run once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.errors import ExitCode, UserError, printable
from compress.storage.disk import RESOURCE_ERRNOS
from compress.tracking.archivecheck import check_archive, read_model, read_run
from compress.tracking.archiveformat import INDEX, PARENT_TAGS, Dataset, RunFile
from compress.tracking.batch import METRICS_PER_CALL, TEXTS_PER_CALL
from compress.tracking.experiments import ensure_experiment
from compress.tracking.files import patience
from compress.tracking.listing import all_experiments
from compress.tracking.models import FROM_TAG, KEY_TAG, VERSIONS_TAG
from compress.tracking.relocating import require_in_place
from compress.tracking.store import Store, open_client, short

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

STATE_TAG = "compress.import"
_BEGUN, _DONE = "begun", "done"

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
    All or nothing: an import that fails or is stopped marks the runs that it made as deleted. After one that was
    killed, the next import makes its last run anew. Raises UserError, before anything is made, for what
    `check_archive` rejects; UserError with the store's reason when the store takes less than that.
    """
    archive = check_archive(source)
    require_in_place(store)
    client = open_client(store)
    made = _Made(client)
    ids: dict[str, str] = {}
    done: dict[str, ImportedRun] = {}
    where = INDEX
    try:
        numbers = {name: made.experiment(store, name) for name in dict.fromkeys(archive.experiments.values())}
        searched = list({*(e.experiment_id for e in all_experiments(client)), *numbers.values()})
        for number, identity in enumerate(archive.order, 1):
            where = f"runs/{identity}.json"
            told = read_run(source, identity)
            there = _there(client, searched, told)
            why_not = "" if there is None else "the store already has it"
            ids[identity] = there or _make(made, numbers[told.experiment], told, ids, source)
            done[identity] = ImportedRun(identity, printable(told.name, 250), ids[identity], why_not)
            if number % 100 == 0:
                say(f"{number} of {len(archive.order)} runs")
        where = INDEX
        for name, tags in archive.index.experiments.items():
            made.views(numbers[name], tags)
    except BaseException as error:
        left = made.undo()
        code = _code(error)
        if isinstance(error, UserError) or (code is None and not left):
            raise
        do = "`compress runs gc` frees their disk space" if made.runs and not left else None
        what = "the import failed, and the runs that it made were deleted"
        if left:
            what = f"the import failed, and {left} of the runs that it made could not be deleted"
            do = "delete them with `compress runs delete` when the store responds"
        raise UserError(
            what, where=str(source / where), why=short(error), do=do, code=code or ExitCode.ENVIRONMENT
        ) from error
    return [done[identity] for identity in archive.index.runs]


class _Made:
    """What this import made so far, to be taken back if it fails."""

    def __init__(self, client: MlflowClient) -> None:
        self.client = client
        self.runs: list[str] = []
        self.models: list[str] = []
        self._experiments: list[str] = []
        self._views: list[tuple[str, str]] = []

    def experiment(self, store: Store, name: str) -> str:
        """The id of the experiment, made or taken back from the bin when needed."""
        before = self.client.get_experiment_by_name(name)
        found = ensure_experiment(self.client, store, name, None)
        if before is None or before.lifecycle_stage == "deleted":
            self._experiments.append(found)
        return found

    def views(self, experiment: str, tags: Mapping[str, str]) -> None:
        """Saved views; one that the experiment has stays as it is."""
        there = self.client.get_experiment(experiment).tags
        for tag, value in tags.items():
            if tag not in there:
                self._views.append((experiment, tag))
                self.client.set_experiment_tag(experiment, tag, value)

    def undo(self) -> int:
        """Mark everything as deleted; how many runs could not be."""
        for experiment, tag in self._views:
            self._try(self.client.delete_experiment_tag, experiment, tag)
        for model in self.models:
            self._try(self.client.delete_logged_model, model)
        left = 0
        for run in reversed(self.runs):
            # An experiment taken back from the bin brings its runs with it: the next import must not count them.
            self._try(self.client.set_tag, run, STATE_TAG, _BEGUN)
            left += not self._try(self.client.delete_run, run)
        for experiment in self._experiments:
            self._try(self.client.delete_experiment, experiment)
        return left

    def _try(self, change: Callable[..., object], *words: str) -> bool:
        try:
            change(*words)
        except Exception as error:  # the store is gone, or never had it
            return getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST"
        return True


def _code(error: BaseException) -> ExitCode | None:
    """The exit code of what a store or a disk raised; None for a fault of ours, or a stop."""
    said = getattr(error, "error_code", None)
    if isinstance(error, OverflowError | ValueError) or said in ("INVALID_PARAMETER_VALUE", "BAD_REQUEST"):
        return ExitCode.INPUT  # a value that this store does not take
    if isinstance(error, OSError) and error.errno in RESOURCE_ERRNOS:
        return ExitCode.RESOURCES
    return ExitCode.ENVIRONMENT if said is not None or isinstance(error, OSError) else None


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


def _make(made: _Made, experiment: str, told: RunFile, ids: Mapping[str, str], source: Path) -> str:
    client = made.client
    tags = {key: value for key, value in told.tags.items() if key not in PARENT_TAGS}
    tags |= {key: ids[told.tags[key]] for key in PARENT_TAGS if told.tags.get(key) in ids}
    own = {**tags, FROM_TAG: told.id, STATE_TAG: _BEGUN}
    begun = told.start_time or told.end_time
    run = client.create_run(experiment, start_time=begun, run_name=told.name, tags=own)
    run_id = run.info.run_id
    made.runs.append(run_id)
    client.update_run(run_id, status="KILLED")  # if this process is killed, nothing seems to run
    _datasets(client, run_id, told.datasets)
    _figures(client, run_id, [_metric(run_id, point) for point in told.metrics], told.params)
    files = source / "runs" / told.id
    if files.is_dir():
        with patience():
            client.log_artifacts(run_id, str(files))
    for identity in told.models:
        _model(made, experiment, run_id, source, identity)
    client.set_tag(run_id, STATE_TAG, _DONE)
    ended = told.status not in ("RUNNING", "SCHEDULED")  # one that ran is not run on here
    client.set_terminated(run_id, status=told.status if ended else "KILLED", end_time=told.end_time)
    return run_id


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


def _figures(client: MlflowClient, run_id: str, points: Sequence[Metric], params: Mapping[str, str]) -> None:
    from mlflow.entities import Param

    rows = [Param(key, value) for key, value in params.items()]
    calls = max(-(-len(points) // METRICS_PER_CALL), -(-len(rows) // TEXTS_PER_CALL))
    for i in range(calls):
        some = points[i * METRICS_PER_CALL : (i + 1) * METRICS_PER_CALL]
        client.log_batch(run_id, metrics=some, params=rows[i * TEXTS_PER_CALL : (i + 1) * TEXTS_PER_CALL])


def _model(made: _Made, experiment: str, run_id: str, source: Path, identity: str) -> None:
    from mlflow.entities import LoggedModelOutput

    client, told = made.client, read_model(source, identity)
    tags = {key: value for key, value in told.tags.items() if key != VERSIONS_TAG}  # of the other store's registry
    model_id = client.create_logged_model(
        experiment_id=experiment,
        name=told.name,
        source_run_id=run_id,
        tags={**tags, FROM_TAG: identity},
        params=told.params,
        model_type=told.model_type,
    ).model_id
    made.models.append(model_id)
    files = source / "models" / identity
    if files.is_dir():
        with patience():
            client.log_model_artifacts(model_id, str(files))
    client.finalize_logged_model(model_id, "READY")
    client.log_outputs(run_id, [LoggedModelOutput(model_id, step=0)])
    points = []
    for point in told.metrics:
        of_data = {"dataset_name": point[4], "dataset_digest": point[5]} if point[4] else {}
        points.append(_metric(run_id, point, model_id=model_id, **of_data))
    _figures(client, run_id, points, {})
