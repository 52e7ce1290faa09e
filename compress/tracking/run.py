"""One tracked run: every call appends to a local journal and returns immediately."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from compress.contracts import RunOptions
from compress.errors import Stopped, printable
from compress.storage import atomic
from compress.storage.journal import Journal
from compress.storage.lock import run_lock
from compress.storage.sent import find_name
from compress.tracking import outages
from compress.tracking import records as rec
from compress.tracking.models import relative_to
from compress.tracking.names import (
    PARAM_LIMIT,
    TAG_LIMIT,
    colour,
    model_name,
    redact,
    split_metrics,
    text_values,
    truncate_text,
)
from compress.tracking.relocating import require_in_place
from compress.tracking.sender import Sender
from compress.tracking.state import not_beyond
from compress.tracking.store import Store, import_mlflow, require_artifact_root, require_driver, resolve_store
from compress.tracking.view import DEFAULT_QUALITY, ui_lines

log = logging.getLogger("compress.tracking")

FLUSH_SECONDS = 30.0
DATABASE_FLUSH_SECONDS = 300.0
"""Of a database file: it answers, but only after the processes that are making or writing it."""
TABLES = "mlflow.loggedArtifacts"


@dataclass(frozen=True)
class RunEnding:
    """How a run left the store. left: records that are only in the journal, or whose files have not arrived; `sync` is
    the command that sends them."""

    status: str
    run_id: str | None
    left: int
    sync: str | None


@dataclass(frozen=True)
class Parent:
    """What a run needs to know of the run above it."""

    key: str
    experiment: str


class TrackedRun:
    """A `contracts.RunLog`, and what beside it the pipeline says about data sets, models and the end.

    Nothing here raises for the store's sake, and nothing waits for it except `finish`, which is bounded.
    As a context manager it finishes by itself: FINISHED, FAILED on an exception, KILLED when the run was stopped.
    """

    def __init__(
        self,
        folder: Path,
        start: rec.Record,
        journal: Journal,
        written: int,
        sender: Sender | None,
        warn: Callable[[str], None],
        store: Store,
        held: ExitStack,
        tables: Sequence[str] = (),
    ) -> None:
        self._held = held
        self._tables = list(tables)
        self.folder, self.store = folder, store
        self.key: str = start["key"]
        self.name: str = start["name"]
        self.experiment: str = start["experiment"]
        self._command = truncate_text(str(start["tags"].get("mlflow.source.name", "")), 500)
        self._journal, self._written, self._sender, self._tell = journal, written, sender, warn
        self._nonfinite: set[str] = set()
        self._said: set[str] = set()
        self._ending: RunEnding | None = None

    @property
    def run_id(self) -> str | None:
        """The run's id in the store, once the store knows it."""
        return self._sender.run_id if self._sender else None

    @property
    def parent(self) -> Parent:
        """This run as the parent of another: `open_run(..., parent=run.parent)`."""
        return Parent(self.key, self.experiment)

    # --- what a run says ------------------------------------------------------------------------------------------

    def params(self, values: Mapping[str, Any]) -> None:
        """Few and short; a value that differs from an earlier one becomes the tag `changed/<key>`."""
        self._append({"op": "params", "values": text_values(values, PARAM_LIMIT)})

    def tags(self, values: Mapping[str, str]) -> None:
        self._append({"op": "tags", "values": text_values(values, TAG_LIMIT)})

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None:
        """Figures at a step, or final ones (no step: the page draws them as bars). A (key, step) is kept once."""
        finite, nonfinite, bad = split_metrics(values, step)
        if finite:
            self._append({"op": "metrics", "values": finite, "step": step})
        new = {k: v for k, v in nonfinite.items() if k not in self._nonfinite}
        if new:
            self._nonfinite.update(new)
            self._append({"op": "tags", "values": new})
        if bad:
            self._warn_once(f"tracking: values that are not finite numbers were skipped: {', '.join(bad)}")

    def artifact(self, path: Path, folder: str = "") -> None:
        """A file or folder, read when it is sent: leave it where it is."""
        self._append({"op": "artifact", "path": relative_to(self.folder, Path(path)), "folder": folder})

    def table(self, path: Path, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a JSON file that the run's page shows as a table; it becomes an artifact."""
        atomic.write_json(path, {"columns": list(columns), "data": [list(row) for row in rows]})
        self.artifact(path)
        if path.name not in self._tables:
            self._tables.append(path.name)
        # What mlflow.log_table leaves: with this tag the page shows the files as tables.
        shown = [{"path": name, "type": "table"} for name in self._tables]
        self._append({"op": "tags", "values": {TABLES: json.dumps(shown)}})

    def note(self, markdown: str) -> None:
        """The description on the run's page, with the command that made it below."""
        command = f"\n\n```sh\n{self._command}\n```" if self._command else ""
        self._append({"op": "note", "text": truncate_text(redact(markdown), TAG_LIMIT - len(command)) + command})

    def dataset(self, name: str, digest: str, source: str = "", context: str = "evaluation") -> None:
        """A data set the run reads. context: `training`, `validation`, `evaluation` …"""
        self._append(rec.dataset_record(name, digest, source, context))

    def model(
        self,
        folder: Path,
        *,
        name: str,
        model_type: str,
        params: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        dataset: tuple[str, str] | None = None,
    ) -> str:
        """A model folder becomes a LoggedModel with its final figures (they become the run's too), tied to the data
        set (name, digest). Returns the key that `register` takes."""
        place = relative_to(self.folder, Path(find_name(str(folder))))
        key = rec.model_key(self.key, name, place)
        finite, nonfinite, _ = split_metrics(metrics or {}, None)
        if nonfinite:
            self._append({"op": "tags", "values": nonfinite})
        tied = rec.dataset_record(dataset[0], dataset[1], "", "") if dataset else None
        self._append(
            {
                "op": "model",
                "key": key,
                "folder": place,
                "name": model_name(name),
                "model_type": printable(model_type, 250),
                "params": text_values(params or {}, PARAM_LIMIT),
                "metrics": finite,
                "dataset": [tied["name"], tied["digest"]] if tied else None,
            }
        )
        return key

    def register(self, model: str, name: str, alias: str | None = None) -> None:
        """The model with this key becomes the newest version of a registered model, and bears the alias."""
        self._append({"op": "register", "model": model, "name": name, "alias": alias})

    # --- its end --------------------------------------------------------------------------------------------------

    def finish(self, status: str = rec.FINISHED, seconds: float | None = None) -> RunEnding:
        """Ends the run and waits at most `seconds` for the store, for its files too. A second call only tells the
        ending again.

        seconds: by default 30 for a server, which may be dead, and 300 for a database file.
        """
        if seconds is None:
            seconds = FLUSH_SECONDS if self.store.database is None else DATABASE_FLUSH_SECONDS
        if self._ending is not None:
            return self._ending
        self._append({"op": "finish", "status": status})
        try:
            if self._sender is not None:
                try:
                    self._sender.flush(seconds)
                finally:  # a second signal ends the waiting
                    self._sender.close()
        finally:
            self._ending = self._end(status)
        return self._ending

    def _end(self, status: str) -> RunEnding:
        """Tells what has not arrived, and leaves the folder to others."""
        sent = self._sender.sent_records if self._sender else 0
        left, files = max(self._written - sent, 0), self._sender.files_left if self._sender else 0
        sync = outages.sync_command([self.folder]) if left + files else None
        ending = RunEnding(status, self.run_id, left + files, sync)
        outages.run_ends(self.folder, self.store, left, files, self._warn_once)
        try:
            self._journal.close()
        except Exception as error:
            self._warn_once(f"tracking: the journal could not be closed: {error}")
        self._held.close()
        return ending

    def ui_lines(self) -> list[str]:
        """The lines to type to see this run."""
        return ui_lines(self.store, self.experiment)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish(rec.FINISHED)
        elif issubclass(kind, (Stopped, KeyboardInterrupt)):
            self.finish(rec.KILLED)
        else:
            self.finish(rec.FAILED)

    # --- inside ---------------------------------------------------------------------------------------------------

    def _append(self, record: rec.Record) -> None:
        if self._ending is not None:
            self._warn_once("tracking: the run has ended; later metrics are ignored")
            return
        try:
            self._journal.append({"t": rec.now_ms(), **record})
            self._written += 1
        except Exception as error:  # a full disk must not end a training
            self._warn_once(f"tracking: the journal in {self.folder / rec.FOLDER} cannot be written: {error}")

    def _warn_once(self, text: str) -> None:
        if text in self._said:
            return
        self._said.add(text)
        try:
            self._tell(text)
        except Exception:
            log.exception("the warning could not be shown: %s", text)


def open_run(
    folder: Path,
    *,
    experiment: str,
    name: str,
    method: str,
    role: str = "student",
    parent: Parent | None = None,
    tags: Mapping[str, str] | None = None,
    store: Store | None = None,
    quality: str = DEFAULT_QUALITY,
    command: str | None = None,
    warn: Callable[[str], None] | None = None,
    interval: float | None = None,
) -> TrackedRun:
    """Begins the run of `folder`, or goes on with the one that was begun there.

    role: teacher, student or control.  quality: the metric of the saved view's quality axis.  command: what the source
    column shows (default: this process's command line).  warn: takes one line for a person; called from another thread.
    interval: seconds between two uploads; None: as suits the store.
    UserError: the store's address cannot be one, it is a database without its driver or without a place for files, it
    was moved without its artifact paths, or the journal in the folder is not ours.
    """
    store = store or resolve_store()
    if store.is_bare_database:
        require_artifact_root(store)
        require_driver(store)
    require_in_place(store)
    warn = warn or log.warning
    folder = Path(folder).absolute()
    own_tags = _tags(folder, method, role, command, tags)
    start = rec.start_record(experiment, printable(name, 250), own_tags, _parent(parent), quality, store.shown)
    with ExitStack() as scope:
        scope.enter_context(run_lock(folder / rec.FOLDER))
        journal = rec.open_journal(folder)
        new = not rec.has_journal(folder)
        start, written, tables = _begin(folder, journal, start)
        held = scope.pop_all()
    outages.run_begins()
    sender = _sender(folder, store, warn, interval, new=new)
    return TrackedRun(folder, start, journal, written, sender, warn, store, held, tables)


def open_requested_run(
    folder: Path, options: RunOptions, *, method: str, warn: Callable[[str], None], **said: Any
) -> TrackedRun:
    """`open_run` for the experiment and in the store that a command line asks for. said: its other arguments; the name
    is the folder's where none is said."""
    said.setdefault("name", Path(folder).name)
    store = resolve_store(options.tracking_uri)
    return open_run(folder, experiment=experiment(options), method=method, store=store, warn=warn, **said)


def open_child(log: TrackedRun, folder: Path, **said: Any) -> TrackedRun:
    """`open_run` of a run below `log`, in the same store and experiment. said: its other arguments."""
    return open_run(folder, experiment=log.experiment, parent=log.parent, store=log.store, **said)


def experiment(options: RunOptions) -> str:
    """The experiment of runs that a command line makes."""
    return options.experiment or "compress"


def _begin(folder: Path, journal: Journal, start: rec.Record) -> tuple[rec.Record, int, list[str]]:
    """Writes the first record of a new journal, or the one that goes on; (the run's start, records so far, its
    tables)."""
    if not rec.has_journal(folder):
        journal.append(start)
        return start, 1, []
    known = rec.read(folder)
    not_beyond(rec.state_path(folder), len(known.records))
    journal.append(rec.resume_record(start["store"]))
    shown = [r["values"][TABLES] for r in known.records if r["op"] == "tags" and TABLES in r["values"]]
    return known.start, len(known.records) + 1, [row["path"] for row in json.loads(shown[-1])] if shown else []


def _sender(
    folder: Path, store: Store, warn: Callable[[str], None], interval: float | None, *, new: bool
) -> Sender | None:
    try:
        import_mlflow()
        sender = Sender(folder, store, warn, interval, new=new)
        sender.start()
        return sender
    except Exception as error:  # a broken installation of mlflow, or no more threads
        warn(
            f"tracking: mlflow cannot be used ({printable(str(error), 200)}); metrics are only written to the local "
            f"journal"
        )
        return None


def _parent(parent: Parent | None) -> dict[str, str] | None:
    return {"key": parent.key, "experiment": parent.experiment} if parent else None


def _tags(folder: Path, method: str, role: str, command: str | None, more: Mapping[str, str] | None) -> dict[str, str]:
    own = {
        "compress.method": method,
        "compress.role": role,
        "compress.folder": str(folder.absolute()),
        "mlflow.runColor": colour(method, role),
        "mlflow.source.name": command or rec.command_line(),
        "mlflow.source.type": "LOCAL",
        "mlflow.user": rec.user_name(),
    }
    return text_values({**own, **(more or {})}, TAG_LIMIT)
