"""Uploads a run's journal to a store, continuing where it stopped, without losing or repeating records.

Records are sent together as far as they go, and files apart from them: see `Plan`.

Three things make a second send harmless. `state.json` counts the records that arrived. Points carry the time at which
they were journalled, and after any doubt (a new process, a call that failed) are compared with what the store has.
Runs, models and versions carry their key of the journal as a tag and are looked for before they are made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.storage.faults import fault, point
from compress.storage.journal import read as read_journal
from compress.storage.sent import find_copy
from compress.tracking import finished, models
from compress.tracking import records as rec
from compress.tracking.batch import Batch, Memory, Point
from compress.tracking.experiments import ensure_experiment, find_run
from compress.tracking.files import FileJob, FileJobs, open_artifacts, run_at_once, upload
from compress.tracking.plan import Plan
from compress.tracking.refusals import is_final, is_rejected, retry_races
from compress.tracking.state import SendState
from compress.tracking.store import Store, short

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Metric

_AFTER_SEND = point("tracking.after_send")

FILE_JOBS = 32
"""Records whose files are sent before that is noted."""


_experiments: dict[tuple[str, str, str | None], str] = {}
"""Of this process: store, name and saved view of an experiment that was found or made → its id."""
_making = threading.Lock()
"""Runs are made one after the other: the second finds the experiment, and its parent, without asking."""
_whole_runs: dict[tuple[str, str], str] = {}
"""Store and key of a run that this process began, of which it has had every answer → the address of its files."""
sent_runs: dict[tuple[str, str], str] = {}
"""Of this process: store and key of a run that was sent → its id, by which its children find it without asking."""
_waiting_children: dict[tuple[str, str], set[str]] = {}
"""Of this process: store and key of a run that has not been sent yet → ids of those below it, which were sent first."""


class RunMissing(Exception):  # noqa: N818 - tells of the store's state
    """The run this journal was sent to is not in the store."""


class RunDeleted(Exception):  # noqa: N818
    """A person deleted the run in the store: nothing is sent until they restore it."""


class _Retired(Exception):  # noqa: N818
    """The folder belongs to others: nothing more is sent of it here."""


class Replay:
    """One journal on its way to one store. Any error of the store comes through.

    Two threads at most: one sends records (`send_all`), one their files (`send_files`).

    new: this process began the journal, and no other has sent of it.  own: this process logs the run: what it sent
    before is not asked for again.
    """

    def __init__(
        self, folder: Path, store: Store, warn: Callable[[str], None], *, new: bool = False, own: bool = False
    ) -> None:
        self.folder, self.store, self.warn = folder, store, warn
        self.state = SendState.load(rec.state_path(folder), store.shown)
        self.pending: deque[rec.Record] = deque()
        self.files = FileJobs()
        self.sent_now = 0  # records sent by this object
        self.is_new = new
        self._own = own
        self.retired = False
        self._saving = threading.Lock()
        self._memory = Memory()
        self._offset = 0
        self._read = 0
        self._start: rec.Record | None = None
        self._client: MlflowClient | None = None
        self._artifacts: str | None = None  # address of the run's files
        self._places: dict[str, str] = {}  # key of a model → address of its files
        self._versions: dict[str, list[rec.Record]] = {}  # key of one whose files have not arrived → its registrations
        self._known = False  # the run is in the store, asked in this process
        self._unasked = False  # that is taken from an earlier journal of this process
        self._doubt = True
        self._asked_parent = False
        self._plan: Plan | None = None

    # --- the journal ----------------------------------------------------------------------------------------------

    def read_new(self) -> None:
        """Puts what the journal has gained into `pending`; what the store has goes to memory only."""
        found, self._offset = read_journal(rec.journal_path(self.folder), self._offset)
        for record in found:
            if self._start is None and record["op"] == "start":
                self._start = record
            if self._read < self.state.sent:
                self._remember(record)
                if self._read in self.state.files:
                    self._set_aside(self._read, record)
                if record["op"] == "register":
                    self._await_files(record)
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
        """Everything the journal holds now but the files, which `send_files` sends. Stops at the first error of the
        store; call again to go on."""
        client = self._connected()
        if not self.pending and self._plan is None:
            self.read_new()
        with suppress(_Retired):
            self._ensure_run(client)
            self._link_children(client)
            while self.pending:
                self._send_some(client)
                if not self.pending:
                    self.read_new()
            self._require_folder()
            self._link_parent(client, ask=not self._asked_parent)

    def send_files(self) -> int:
        """The files that were set aside, several at a time, each once; of how many records. Raises the first error of
        the store, after all others have gone; what it stands for stays aside."""
        errors: list[Exception] = []
        waiting = self.files.waiting()
        for start in range(0, len(waiting), FILE_JOBS):
            if self.retired:
                return 0
            failed = self._send_jobs(waiting[start : start + FILE_JOBS])
            errors += failed
            if len(failed) == len(waiting[start : start + FILE_JOBS]):
                break  # the store takes no files at all
        if errors and not self.retired:
            raise errors[0]
        return len(waiting)

    @property
    def run_id(self) -> str:
        assert self.state.run_id is not None
        return self.state.run_id

    @contextmanager
    def making(self) -> Iterator[None]:
        """Something is made in the store; when that fails, it may be there all the same and is looked for from now
        on."""
        before, self.is_new = self.is_new, False
        yield
        self.is_new = before

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = self.store.client(touch=False)
        return self._client

    def _send_some(self, client: MlflowClient) -> None:
        plan = self._plan = self._plan or self._next_plan()
        self._require_folder()  # after the plan is set: `retire` looks at it
        self._send_batch(client, plan.batch)
        plan.batch = Batch()
        if plan.datasets:
            self._attempt(partial(self._log_datasets, client, plan.datasets), client, plan.datasets)
            plan.datasets = []
        while plan.models:
            number, record, points = plan.models[0]
            if self._attempt(partial(self._log_model, client, record, points)):
                plan.files.append((number, record))
            plan.models.popleft()
        begun = {record["key"] for _, record in plan.files if record["op"] == "model"}
        while plan.registered:
            record = plan.registered[0]
            if record["model"] in begun:
                plan.waiting.append(record)
            elif not self._await_files(record):
                self._attempt(partial(models.register_model, self, client, record))
            plan.registered.popleft()
        if plan.status is not None:
            self._attempt(partial(self._set_status, client, plan.status))
            plan.status = None
        fault(_AFTER_SEND)
        self._plan = None
        with self._saving:
            for number, record in plan.files:
                self.state.files = sorted({*self.state.files, number} - {*self._set_aside(number, record)})
            for record in plan.waiting:
                self._versions.setdefault(record["model"], []).append(record)
            self.state.sent += plan.records
        for _ in range(plan.records):
            self.pending.popleft()
        self.sent_now += plan.records
        self.save()

    def _next_plan(self) -> Plan:
        plan = Plan()
        for number, record in enumerate(self.pending, self.state.sent):
            if not plan.take(number, record, self._memory):
                break
            if record["op"] == "start":
                break  # the run is there: that is noted before anything else is sent
        return plan

    def retire(self) -> None:
        """The folder belongs to others from now on: a thread that hung in a call writes nothing any more."""
        self.retired = True
        if self._start is not None:
            address = (self.store.uri, self._start["key"])
            _whole_runs.pop(address, None)
            if self.is_new and self._known and self._plan is None and not self._doubt and self._artifacts is not None:
                _whole_runs[address] = self._artifacts

    def _require_folder(self) -> None:
        """Before each step of a thread that may have hung in the one before. Raises _Retired."""
        if self.retired:
            raise _Retired

    def save(self) -> None:
        with self._saving:
            if not self.retired:
                self.state.save(rec.state_path(self.folder))

    def _send_batch(self, client: MlflowClient, batch: Batch) -> None:
        doubt = self._doubt
        if batch.points:
            if doubt:
                batch.points = self._missing(client, batch.points)
            self._doubt, doubt = True, False  # until the answer is here
        for call in batch.calls():
            self._require_folder()
            try:
                retry_races(partial(self._log, client, call))
            except Exception as error:
                if not is_rejected(error):
                    raise
                self._known = False  # perhaps it is the run that is not there any more
                self._check_run(client)
                self._send_one_by_one(client, call)
        self._doubt = doubt

    def _send_one_by_one(self, client: MlflowClient, call: Batch) -> None:
        for single in call.singles():
            self._require_folder()
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
        address = (self.store.uri, self._start["key"])
        whole = _whole_runs.pop(address, None)  # once: whatever fails later is looked into
        if self._own and self.state.run_id is not None and whole is not None:
            self._artifacts = whole
            self._known, self._doubt, self.is_new, self._unasked = True, False, True, True
            return
        if self.state.run_id is not None:
            try:
                self._check_run(client)
            except RunMissing:
                self._start_over()  # the store was emptied or made anew: the journal fills it again
        if self.state.run_id is None:
            with _making:
                self._require_folder()
                self._find_or_make_run(client, self._start)
                sent_runs[address] = self.run_id  # before the next run looks for its parent
        else:
            sent_runs[address] = self.run_id

    def _find_or_make_run(self, client: MlflowClient, start: rec.Record) -> None:
        name, view = start["experiment"], start.get("view")
        address = (self.store.uri, name, view)
        experiment_id = _experiments.pop(address, None)
        if experiment_id is not None and self.is_new:
            try:
                self._create_run(client, experiment_id, start)
            except Exception as error:
                if not is_rejected(error):
                    raise
                experiment_id = None  # deleted meanwhile
        if self.state.run_id is None:
            experiment_id = experiment_id or ensure_experiment(client, self.store, name, view)
            found = None if self.is_new else find_run(client, experiment_id, start["key"])
            self._doubt = found is not None
            if found is None:
                self._create_run(client, experiment_id, start)
            else:
                self.state.run_id = found
                self._check_run(client)
        assert experiment_id is not None
        self.state.experiment_id = experiment_id
        if self.store.is_server:  # a file may be replaced by another, with other numbers
            _experiments[address] = experiment_id
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
        self._artifacts = run.info.artifact_uri
        self._known = True

    def _start_over(self) -> None:
        self.state = SendState(self.store.shown)
        self.pending.clear()
        self.files.clear()
        self._versions.clear()
        self.is_new = False
        self._plan, self._memory, self._offset, self._read = None, Memory(), 0, 0
        self._places, self._artifacts = {}, None
        self.read_new()

    def _create_run(self, client: MlflowClient, experiment_id: str, start: rec.Record) -> None:
        parent = self._find_parent(client, ask=True)
        with self.making():
            run = client.create_run(
                experiment_id,
                start_time=int(start["t"]),
                run_name=start["name"],
                tags={**start["tags"], **_parent_tags(parent), models.KEY_TAG: start["key"]},
            )
        self.state.run_id, self.state.linked = run.info.run_id, parent
        self._doubt = False
        self._artifacts = run.info.artifact_uri
        self._known = True

    def _find_parent(self, client: MlflowClient, *, ask: bool) -> str | None:
        """The id of the run above this one, which another journal brings to the store, maybe later than this one."""
        parent = (self._start or {}).get("parent")
        if not parent:
            return None
        known = sent_runs.get((self.store.uri, parent["key"]))
        if known is not None or not ask:
            return known
        self._asked_parent = True
        experiment = client.get_experiment_by_name(parent["experiment"])
        return find_run(client, experiment.experiment_id, parent["key"]) if experiment else None

    def _link_parent(self, client: MlflowClient, *, ask: bool) -> None:
        """Hangs the run below its parent. ask: the store, too; else only what this process has sent."""
        if self.state.linked:
            return
        found = self._find_parent(client, ask=ask)
        if not found and (parent := (self._start or {}).get("parent")):
            with _making:
                found = self._find_parent(client, ask=False)
                if not found:  # perhaps this run ends before the one above it is sent
                    _waiting_children.setdefault((self.store.uri, parent["key"]), set()).add(self.run_id)
        if found:
            self._log(client, Batch(tags=_parent_tags(found)))
            self.state.linked = found
            self.save()

    def _link_children(self, client: MlflowClient) -> None:
        """Hangs the runs below this one that this process sent before it."""
        from mlflow.entities import RunTag

        assert self._start is not None, "a journal begins with its start"
        children = _waiting_children.get((self.store.uri, self._start["key"]), set())
        tags = [RunTag(key, value) for key, value in _parent_tags(self.run_id).items()]
        for child in list(children):
            self._attempt(partial(client.log_batch, child, tags=tags, synchronous=True))
            children.discard(child)

    # --- records that travel alone --------------------------------------------------------------------------------

    def _attempt(
        self, call: Callable[[], object], client: MlflowClient | None = None, rows: Sequence[rec.Record] = ()
    ) -> bool:
        """Whether the store took it whole; what it rejects is passed over and counted. rows: data sets, which are then
        sent one by one."""
        self._require_folder()
        try:
            retry_races(call)
        except Exception as error:
            if not is_rejected(error) and not isinstance(error, FileNotFoundError):
                raise
            if self._unasked and is_rejected(error):
                self._known = False  # perhaps it is the run that is not there any more
                self._check_run(self._connected())
                self._unasked = False
            if client is not None and len(rows) > 1:
                for row in rows:
                    self._attempt(partial(self._log_datasets, client, [row]))
                return False
            self._refuse(error)
            return False
        return True

    def _set_status(self, client: MlflowClient, record: rec.Record) -> None:
        if record["op"] == "resume":
            client.update_run(self.run_id, status=rec.RUNNING)
            return
        self._link_parent(client, ask=True)
        client.set_terminated(self.run_id, status=record["status"], end_time=int(record["t"]))
        if self._start is not None:
            finished.remember(self.store, self._start["experiment"])

    def _log_datasets(self, client: MlflowClient, records: Sequence[rec.Record]) -> None:
        from mlflow.entities import Dataset, DatasetInput, InputTag

        rows = []
        for record in records:
            dataset = Dataset(record["name"], record["digest"], "local", record["source"])
            rows.append(DatasetInput(dataset, [InputTag("mlflow.data.context", record["context"])]))
        client.log_inputs(self.run_id, rows)

    def _log_model(self, client: MlflowClient, record: rec.Record, points: Sequence[Point]) -> None:
        self._places[record["key"]] = models.attach_model(self, client, record, points)

    def place(self, path: str) -> Path:
        """A path of a record, or the copy that was sent to this machine: what lies in the run's folder was written
        relative to it, so the folder may move."""
        return find_copy(self.folder / path)

    @property
    def role_tags(self) -> dict[str, Any]:
        tags = (self._start or {}).get("tags", {})
        return {k: tags[k] for k in ("compress.method", "compress.role") if k in tags}

    # --- files ----------------------------------------------------------------------------------------------------

    def _set_aside(self, number: int, record: rec.Record) -> list[int]:
        """Keeps a record for `send_files`; returns the numbers of earlier ones that it replaces."""
        place = self.place(record["path"] if record["op"] == "artifact" else record["folder"])
        return self.files.add(FileJob(number, record, place))

    def _await_files(self, record: rec.Record) -> bool:
        """Keeps the registration of a model until its files are there; False when they do not stand aside."""
        with self._saving:
            if not self.files.has_model(record["model"]):
                return False
            self._versions.setdefault(record["model"], []).append(record)
        return True

    def _send_jobs(self, jobs: Sequence[FileJob]) -> list[Exception]:
        """Sends the files of some records at once; the errors of the store."""
        calls: list[Callable[[], None]] = []
        owners: list[FileJob] = []
        failed: dict[FileJob, Exception] = {}  # one of a job that another try may cure goes before one that none will
        for job in jobs:
            try:
                found = self._calls_of(job)
            except Exception as error:
                failed[job] = error
                continue
            calls += [partial(self._call, call) for call in found]
            owners += [job] * len(found)
        for job, error in zip(owners, run_at_once(calls), strict=True):
            if error is not None and (job not in failed or is_final(failed[job])):
                failed[job] = error
        for job in jobs:
            error = failed.pop(job, None)
            try:
                self._end_job(job, error)
            except Exception as unfinished:
                failed[job] = unfinished
        return list(failed.values())

    def _end_job(self, job: FileJob, error: Exception | None) -> None:
        """Notes that the files of a record have arrived, or never will, and registers their model. Raises what another
        try may cure; the job then stays."""
        if error is not None and not is_final(error):
            raise error
        self._require_folder()
        try:
            if error is None and job.model is not None:
                models.finish_model(self._connected(), self.state.models[job.model])
        except Exception as unfinished:
            if not is_final(unfinished):
                raise
            error = unfinished
        while True:
            with self._saving:
                waiting = self._versions.get(job.model or "", [])
                if error is not None or not waiting:
                    if not self.files.remove(job):
                        return  # another record took its place
                    lost = self._versions.pop(job.model or "", [])
                    self.state.files = [number for number in self.state.files if number != job.number]
                    break
            self._attempt(partial(models.register_model, self, self._connected(), waiting[0]))
            waiting.pop(0)
        if error is not None:
            for _ in (job, *lost):  # a model without its files is not registered
                self._refuse(error)
        self.save()

    def _call(self, send: Callable[[], None]) -> None:
        self._require_folder()
        send()

    def _calls_of(self, job: FileJob) -> list[Callable[[], None]]:
        if not job.place.exists():
            raise FileNotFoundError(f"{job.place} does not exist")
        address = self._address_of(job)
        folder = "" if job.model is not None else job.record["folder"]
        return upload(open_artifacts(self.store, address), job.place, folder, inside=job.model is not None)

    def _address_of(self, job: FileJob) -> str:
        if job.model is None:
            if self._artifacts is None:
                self._check_run(self._connected())
            assert self._artifacts is not None
            return self._artifacts
        if job.model not in self._places:
            model = self._connected().get_logged_model(self.state.models[job.model])
            self._places[job.model] = model.artifact_location
        return self._places[job.model]


def _parent_tags(parent: str | None) -> dict[str, str]:
    return {"mlflow.parentRunId": parent, "compress.parent_run": parent} if parent else {}
