"""Uploads a run's journal to a store, continuing where it stopped, without losing or repeating records.

Three things make a second send harmless. `state.json` counts the records that arrived. Points carry the time at which
they were journalled, and after any doubt (a new process, a call that failed) are compared with what the store has.
Runs, models and versions carry their key of the journal as a tag and are looked for before they are made.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.storage.faults import fault, point
from compress.storage.journal import read as read_journal
from compress.tracking import finished, models
from compress.tracking import records as rec
from compress.tracking.batch import Batch, Memory, Point
from compress.tracking.names import DATASET_NAME_LIMIT, DIGEST_LIMIT, SOURCE_LIMIT, redact, truncate_text
from compress.tracking.state import SendState
from compress.tracking.store import Store, short
from compress.tracking.view import ensure_view

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

_AFTER_SEND = point("tracking.after_send")

_HELD = "RESOURCE_ALREADY_EXISTS"
_RACE = {"BAD_REQUEST", _HELD}
"""What a second try can cure. BAD_REQUEST is MLflow's answer to every error of its database, also to the second of two
runs that insert the row of one data set at once."""
# What no repetition will cure, or did; anything else is the store's trouble and is tried again.
_REFUSALS = {"INVALID_PARAMETER_VALUE", "RESOURCE_DOES_NOT_EXIST", *_RACE}
_TRIES = 4
_PAUSE = (
    0.2  # s before the second try, twice as long before each later one; at random, so that two runs do not meet again
)


def is_rejected(error: BaseException) -> bool:
    """True when the store said no to this very content."""
    return getattr(error, "error_code", None) in _REFUSALS


def retry_races(call: Callable[[], object]) -> None:
    """Calls the store, several times while it gives an answer that a second try can cure. What it holds already is sent.
    Any other error comes through, and the last one."""
    for number in range(_TRIES):
        try:
            call()
            return
        except Exception as error:
            code = getattr(error, "error_code", None)
            if code not in _RACE or number == _TRIES - 1:
                if code == _HELD:
                    return
                raise
        time.sleep(random.uniform(0.5, 1) * _PAUSE * 2**number)


class RunMissing(Exception):  # noqa: N818 - tells of the store's state
    """The run this journal was sent to is not in the store."""


class RunDeleted(Exception):  # noqa: N818
    """A person deleted the run in the store: nothing is sent until they restore it."""


class Replay:
    """One journal on its way to one store. Not for two threads at once; any error of the store comes through."""

    def __init__(self, folder: Path, store: Store, warn: Callable[[str], None]) -> None:
        self.folder, self.store, self.warn = folder, store, warn
        self.state = SendState.load(rec.state_path(folder), store.shown)
        self.pending: deque[rec.Record] = deque()
        self.sent_now = 0  # records sent by this object
        self._memory = Memory()
        self._offset = 0
        self._read = 0
        self._start: rec.Record | None = None
        self._client: MlflowClient | None = None
        self._known = False  # the run is in the store, asked in this process
        self._doubt = True
        self._unsent: Batch | None = None

    # --- the journal ----------------------------------------------------------------------------------------------

    def read_new(self) -> None:
        """Puts what the journal has gained into `pending`; what the store has goes to memory only."""
        found, self._offset = read_journal(rec.journal_path(self.folder), self._offset)
        for record in found:
            if self._start is None and record["op"] == "start":
                self._start = record
            if self._read < self.state.sent:
                self._remember(record)
            else:
                self.pending.append(record)
            self._read += 1

    def _remember(self, record: rec.Record) -> None:
        if record["op"] == "model":
            self._memory.final_points(record["metrics"], int(record["t"]))
        else:
            Batch().take(record, self._memory)

    # --- sending --------------------------------------------------------------------------------------------------

    def send_all(self) -> None:
        """Everything the journal holds now. Stops at the first error of the store; call again to go on."""
        client = self._connected()
        if not self.pending and self._unsent is None:
            self.read_new()
        self._ensure_run(client)
        while self.pending or self._unsent is not None:
            self._send_some(client)
            if not self.pending:
                self.read_new()
        self._link_parent(client)

    def end_as(self, status: str, t: int) -> None:
        """Ends the run in the store without a record of its own (a dead process wrote none)."""
        self._connected().set_terminated(self.run_id, status=status, end_time=t)

    @property
    def run_id(self) -> str:
        assert self.state.run_id is not None
        return self.state.run_id

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = self.store.client()
        return self._client

    def _send_some(self, client: MlflowClient) -> None:
        if self._unsent is None:
            batch = Batch()
            for record in self.pending:
                if not batch.take(record, self._memory):
                    break
            self._unsent = batch if batch.records else None
        if self._unsent is not None:
            self._send_batch(client, self._unsent)
            done, self._unsent = self._unsent.records, None
        else:
            self._send_single(client, self.pending[0])
            done = 1
        fault(_AFTER_SEND)
        for _ in range(done):
            self.pending.popleft()
        self.state.sent += done
        self.sent_now += done
        self.save()

    def save(self) -> None:
        self.state.save(rec.state_path(self.folder))

    def _send_batch(self, client: MlflowClient, batch: Batch) -> None:
        if self._doubt:
            batch.points = self._missing(client, batch.points)
        self._doubt = True  # until the answer is here
        for call in batch.calls():
            try:
                retry_races(partial(self._log, client, call))
            except Exception as error:
                if not is_rejected(error):
                    raise
                self._known = False  # perhaps it is the run that is not there any more
                self._check_run(client)
                self._send_one_by_one(client, call)
        self._doubt = False

    def _send_one_by_one(self, client: MlflowClient, call: Batch) -> None:
        for single in call.singles():
            try:
                self._log(client, single)
            except Exception as error:
                if not is_rejected(error):
                    raise
                self._refuse(error)

    def _refuse(self, error: BaseException) -> None:
        self.state.refused += 1
        if self.state.refused == 1:
            self.warn(
                f"tracking: the store rejected a record of {self.folder}: {short(error)}; the remaining records are "
                f"uploaded"
            )

    def _log(self, client: MlflowClient, call: Batch) -> None:
        from mlflow.entities import Param, RunTag

        client.log_batch(
            self.run_id,
            metrics=[self.metric(p) for p in call.points],
            params=[Param(k, v) for k, v in call.params.items()],
            tags=[RunTag(k, v) for k, v in call.tags.items()],
            synchronous=True,
        )

    def metric(self, point: Point, **of_model: str) -> Metric:
        from mlflow.entities import Metric

        return Metric(point.key, point.value, point.t, point.step, run_id=self.run_id, **of_model)

    def _missing(self, client: MlflowClient, points: list[Point]) -> list[Point]:
        """The points the store has not: the ones of a batch whose answer was lost are there already."""
        there = {
            (key, m.step, m.timestamp)
            for key in {p.key for p in points}
            for m in client.get_metric_history(self.run_id, key)
        }
        return [p for p in points if (p.key, p.step, p.t) not in there]

    # --- the run --------------------------------------------------------------------------------------------------

    def _ensure_run(self, client: MlflowClient) -> None:
        if self._known:
            return
        assert self._start is not None, "a journal begins with its start"
        if self.state.run_id is not None:
            try:
                self._check_run(client)
            except RunMissing:
                self._start_over()  # the store was emptied or made anew: the journal fills it again
        if self.state.run_id is None:
            experiment_id = ensure_experiment(client, self.store, self._start["experiment"], self._start.get("view"))
            found = find_run(client, experiment_id, self._start["key"])
            self.state.run_id = found or self._create_run(client, experiment_id)
            self.state.experiment_id = experiment_id
            self._doubt = found is not None
            self._check_run(client)
            self.save()

    def _check_run(self, client: MlflowClient) -> None:
        try:
            run = client.get_run(self.run_id)
        except Exception as error:
            if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST":
                raise RunMissing(f"run {self.run_id} no longer exists in the store") from error
            raise
        if run.info.lifecycle_stage == "deleted":
            raise RunDeleted(f"run {self.run_id} was deleted in the store; restore it there to continue")
        self._known = True

    def _start_over(self) -> None:
        self.state = SendState(self.store.shown)
        self.pending.clear()
        self._unsent, self._memory, self._offset, self._read = None, Memory(), 0, 0
        self.read_new()

    def _create_run(self, client: MlflowClient, experiment_id: str) -> str:
        start = self._start
        assert start is not None
        run = client.create_run(
            experiment_id,
            start_time=int(start["t"]),
            run_name=start["name"],
            tags={**start["tags"], models.KEY_TAG: start["key"]},
        )
        return run.info.run_id

    def _link_parent(self, client: MlflowClient) -> None:
        """Hangs the run below its parent, which another journal brings to the store, maybe later than this one."""
        parent = (self._start or {}).get("parent")
        if not parent or self.state.linked:
            return
        experiment = client.get_experiment_by_name(parent["experiment"])
        found = experiment and find_run(client, experiment.experiment_id, parent["key"])
        if found:
            self._log(client, Batch(tags={"mlflow.parentRunId": found, "compress.parent_run": found}))
            self.state.linked = found
            self.save()

    # --- records that travel alone --------------------------------------------------------------------------------

    def _send_single(self, client: MlflowClient, record: rec.Record) -> None:
        try:
            retry_races(partial(getattr(self, f"_op_{record['op']}"), client, record))
        except FileNotFoundError as error:
            self._refuse(error)
        except Exception as error:
            if not is_rejected(error):
                raise
            self._refuse(error)

    def _op_start(self, client: MlflowClient, record: rec.Record) -> None:
        """`_ensure_run` made it."""

    def _op_resume(self, client: MlflowClient, record: rec.Record) -> None:
        client.update_run(self.run_id, status=rec.RUNNING)

    def _op_finish(self, client: MlflowClient, record: rec.Record) -> None:
        self._link_parent(client)
        client.set_terminated(self.run_id, status=record["status"], end_time=int(record["t"]))
        if self._start is not None:
            finished.remember(self.store, self._start["experiment"])

    def _op_dataset(self, client: MlflowClient, record: rec.Record) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        dataset = Dataset(
            name=record["name"],
            digest=record["digest"],
            source_type="local",
            source=record["source"],
        )
        client.log_inputs(self.run_id, [DatasetInput(dataset, [InputTag("mlflow.data.context", record["context"])])])

    def _op_artifact(self, client: MlflowClient, record: rec.Record) -> None:
        path = self.place(record["path"])
        if not path.exists():
            raise FileNotFoundError(f"{path} does not exist")
        with models.patience():
            if path.is_dir():
                client.log_artifacts(self.run_id, str(path), record["folder"] or None)
            else:
                client.log_artifact(self.run_id, str(path), record["folder"] or None)

    def _op_model(self, client: MlflowClient, record: rec.Record) -> None:
        points = self._memory.final_points(record["metrics"], int(record["t"]))
        models.attach_model(self, client, record, points)

    def _op_register(self, client: MlflowClient, record: rec.Record) -> None:
        models.register_model(self, client, record)

    def place(self, path: str) -> Path:
        """A path of a record: what lies in the run's folder was written relative to it, so the folder may move."""
        return self.folder / path

    @property
    def role_tags(self) -> dict[str, Any]:
        tags = (self._start or {}).get("tags", {})
        return {k: tags[k] for k in ("compress.method", "compress.role") if k in tags}


def dataset_record(name: str, digest: str, source: str, context: str) -> rec.Record:
    """A data set of a run, cut to what the store takes."""
    import json

    return {
        "op": "dataset",
        "name": truncate_text(name, DATASET_NAME_LIMIT),
        "digest": digest[:DIGEST_LIMIT],
        "source": json.dumps({"uri": truncate_text(redact(source), SOURCE_LIMIT)}),
        "context": context,
    }


def find_run(client: MlflowClient, experiment_id: str, key: str) -> str | None:
    """The id of the run with this key of a journal, be it deleted."""
    from mlflow.entities import ViewType

    same_key = f"tags.`{models.KEY_TAG}` = '{key}'"
    found = client.search_runs([experiment_id], same_key, run_view_type=ViewType.ALL, max_results=1)
    return found[0].info.run_id if found else None


def ensure_experiment(client: MlflowClient, store: Store, name: str, view: str | None) -> str:
    """The id of the experiment, made or taken back from the bin when needed, with our saved view."""
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        experiment_id = _create_experiment(client, store, name)
    else:
        experiment_id = experiment.experiment_id
        if experiment.lifecycle_stage == "deleted":
            client.restore_experiment(experiment_id)
    if view is not None:
        ensure_view(client, experiment_id, view)
    return experiment_id


def _create_experiment(client: MlflowClient, store: Store, name: str) -> str:
    try:
        return client.create_experiment(
            name,
            artifact_location=store.artifact_location(name),
            tags={"mlflow.experimentKind": "custom_model_development"},
        )
    except Exception:
        made_by_another = client.get_experiment_by_name(name)
        if made_by_another is None:
            raise
        return made_by_another.experiment_id
