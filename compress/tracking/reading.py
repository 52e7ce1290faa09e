"""Many runs of the store at once, with their final figures: what `compress compare` and `compress runs list` read.

A sqlite store is read with one statement a table, without mlflow: its client takes seconds to import and open, and
seconds more for a thousand runs. A store of another kind, layout or version of MLflow is read through the client, which
brings an older one up to date and refuses a newer one.
"""

from __future__ import annotations

import math
import sqlite3
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from compress.errors import UserError, did_you_mean, printable
from compress.tracking.schema import newest_version, schema_version
from compress.tracking.store import Store, open_client, short, unopened
from compress.tracking.view import DEPLOYABLE, PARETO

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Experiment, Run

AT_ONCE = 500  # values of one statement: sqlite takes 999 in old builds
HELD = 2000
"""Runs of a server that are kept in memory as they were listed, instead of asking for them again."""
TEXT_LIMIT = 16 << 20
"""Bytes of a file of a run that is read: a table of its report has a few thousand."""
ACTIVE = "active"
PARENT = "mlflow.parentRunId"
TAGS = ("compress.", "measured.", PARENT, DEPLOYABLE, PARETO)
"""What the tags that are read begin with: notes and lists of tables are long and nobody asks for them here."""
MetricPoint = tuple[str, float, int, int]
"""key, value, time in ms, step."""


@dataclass(frozen=True)
class ListedRun:
    """A run by name. deleted: marked so in the store, which keeps it until it is collected.  status: the store's."""

    run_id: str
    name: str
    experiment: str
    started_ms: int
    artifacts: str
    deleted: bool = False
    status: str = ""


@dataclass(frozen=True)
class StoredRun:
    """A run with what was measured. artifacts: the address of its files.  parent: id of the run above it, or ""."""

    run_id: str
    name: str
    experiment: str
    started_ms: int
    artifacts: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    params: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    status: str = ""

    @property
    def parent(self) -> str:
        return self.tags.get(PARENT, "")


class Reader:
    """Reads a store's runs. Raises UserError when the store does not open."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._client: MlflowClient | None = None
        self._known: Sequence[Experiment] | None = None
        self._held: dict[str, Run] = {}  # runs of a server that were listed with all that they hold
        self._all_held = False
        there = store.database if store.database is not None and store.database.is_file() else None
        self.empty = store.database is not None and there is None
        self._database = there if there is not None and schema_version(there) == newest_version() else None

    def list_runs(self) -> list[ListedRun]:
        """Every run, the newest first, deleted ones too."""
        if self.empty:
            return []
        if self._database is not None:
            statement = (
                "SELECT r.run_uuid, r.name, e.name, r.start_time, r.artifact_uri, r.status, r.lifecycle_stage, "
                "e.lifecycle_stage FROM runs r JOIN experiments e ON e.experiment_id = r.experiment_id "
                "ORDER BY r.start_time DESC, r.run_uuid"
            )
            try:
                rows = self._select(statement)
                return [_listed(row[:6], row[6] != ACTIVE or row[7] != ACTIVE) for row in rows]
            except sqlite3.Error:
                self._database = None  # another layout: the client knows it
        return self._listed_by_client()

    def experiments(self) -> dict[str, bool]:
        """Name → whether it was deleted."""
        if self.empty:
            return {}
        if self._database is not None:
            try:
                rows = self._select("SELECT name, lifecycle_stage FROM experiments")
                return {str(name): stage != ACTIVE for name, stage in rows}
            except sqlite3.Error:
                self._database = None
        return {e.name: e.lifecycle_stage != ACTIVE for e in self._experiments()}

    def runs(self, chosen: Sequence[ListedRun]) -> list[StoredRun]:
        """These runs with their last figures, parameters and tags, in their order."""
        if not chosen:
            return []
        found = self._by_statement(chosen) if self._database is not None else None
        return self._by_client(chosen) if found is None else found

    def in_folder(self, folder: str) -> list[str]:
        """Ids of the runs that were made in this folder."""
        return [run_id for run_id, where in self.read_tag_values("compress.folder").items() if where == folder]

    def children(self, of: Sequence[str]) -> list[StoredRun]:
        """The runs directly below these, the oldest first, with what was measured."""
        above = set(of)
        if not above or self.empty:
            return []
        parents = self.read_tag_values(PARENT)
        chosen = [run for run in self.list_runs() if not run.deleted and parents.get(run.run_id) in above]
        return self.runs(chosen[::-1])

    def list_tagged_runs(self, tag: str) -> list[StoredRun]:
        """The runs that have a tag, the oldest first, with what was measured."""
        ids = self.read_tag_values(tag)
        return self.runs([run for run in self.list_runs() if not run.deleted and run.run_id in ids][::-1])

    def read_tag_values(self, key: str) -> dict[str, str]:
        """Run id → value of a tag, of the runs that have it."""
        if self.empty:
            return {}
        if self._database is not None:
            try:
                return dict(self._select("SELECT run_uuid, value FROM tags WHERE key = ?", [key]))
            except sqlite3.Error:
                self._database = None
        found = self._held.values() if self._all_held else self._search([e.experiment_id for e in self._experiments()])
        tags = {run.info.run_id: run.data.tags for run in found}
        return {run_id: said[key] for run_id, said in tags.items() if key in said}

    def points(self, run_id: str, keys: Iterable[str], final: Sequence[MetricPoint] = ()) -> list[MetricPoint]:
        """All points of a run's metrics, by key, then time, step and value; those that are NaN are left out.

        keys: of its metrics, which a server is asked for one by one.  final: the points of figures that have one only,
        which it is not asked for.
        """
        if self._database is not None:
            what = "SELECT key, value, timestamp, step FROM metrics WHERE is_nan = 0 AND run_uuid = ? "
            try:
                rows = self._select(what + "ORDER BY key, timestamp, step, value", [run_id])
                return [(key, value, time, step) for key, value, time, step in rows]
            except sqlite3.Error:
                self._database = None
        asked = sorted(set(keys) - {key for key, *_ in final})
        found = [m for key in asked for m in self.client.get_metric_history(run_id, key)]
        points = [*final, *((m.key, m.value, m.timestamp, m.step) for m in found)]
        return sorted((p for p in points if not math.isnan(p[1])), key=lambda p: (p[0], p[2], p[3], p[1]))

    def files(self, run: StoredRun) -> list[str]:
        """Names of the files that the run left at the top of its artifacts; none where they are not to be found."""
        folder = local_artifacts(run.artifacts)
        if folder is not None:
            return sorted(p.name for p in folder.iterdir() if p.is_file()) if folder.is_dir() else []
        from mlflow.exceptions import MlflowException

        try:
            return sorted(f.path for f in self.client.list_artifacts(run.run_id) if not f.is_dir)
        except (MlflowException, OSError):
            return []

    def text(self, run: StoredRun, name: str) -> str | None:
        """A file of the run's artifacts; None where it is not to be found."""
        folder = local_artifacts(run.artifacts)
        if folder is not None:
            return _short_text(folder / name)
        from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

        with tempfile.TemporaryDirectory() as here:
            file = Path(here) / "file"
            try:
                # What `download_artifacts` calls for each file, after it has asked for the run, its models, its files.
                get_artifact_repository(run.artifacts, tracking_uri=self.store.uri)._download_file(name, str(file))
                return _short_text(file)
            except Exception:  # each store of files has errors of its own: S3's are botocore's
                return None

    def _by_statement(self, chosen: Sequence[ListedRun]) -> list[StoredRun] | None:
        ids = [run.run_id for run in chosen]
        where = " OR ".join(f"key LIKE '{begin}%'" for begin in TAGS)
        try:
            value = "CASE is_nan WHEN 0 THEN value END"
            metrics = self._values(f"SELECT run_uuid, key, {value} FROM latest_metrics WHERE ", ids)
            params = self._values("SELECT run_uuid, key, value FROM params WHERE ", ids)
            tags = self._values(f"SELECT run_uuid, key, value FROM tags WHERE ({where}) AND ", ids)
        except sqlite3.Error:
            self._database = None
            return None
        for figures in metrics.values():
            figures |= {key: math.nan for key, value in figures.items() if value is None}
        return [_stored(run, *(part.get(run.run_id, {}) for part in (metrics, params, tags))) for run in chosen]

    def _values(self, statement: str, ids: Sequence[str]) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for start in range(0, len(ids), AT_ONCE):
            part = ids[start : start + AT_ONCE]
            marks = ", ".join("?" * len(part))
            for key, name, value in self._select(f"{statement} run_uuid IN ({marks})", part):
                found.setdefault(key, {})[name] = value
        return found

    def _select(self, statement: str, values: Sequence[str] = ()) -> list[tuple]:
        assert self._database is not None
        address = self._database.absolute().as_uri() + "?mode=ro"
        with closing(sqlite3.connect(address, uri=True, timeout=30)) as database:
            return database.execute(statement, values).fetchall()

    @property
    def client(self) -> MlflowClient:
        if self._client is None:
            self._client = self.store.client(touch=False) if self.store.is_server else open_client(self.store)
        return self._client

    def _listed_by_client(self) -> list[ListedRun]:
        known = {e.experiment_id: e for e in self._experiments()}
        found = []
        for number, run in enumerate(self._search(list(known))):
            if number < HELD:
                self._held[run.info.run_id] = run
            self._all_held = number < HELD
            info, of = run.info, known[run.info.experiment_id]
            row = (info.run_id, info.run_name, of.name, info.start_time, info.artifact_uri, info.status)
            found.append(_listed(row, info.lifecycle_stage != ACTIVE or of.lifecycle_stage != ACTIVE))
        return found

    def _by_client(self, chosen: Sequence[ListedRun]) -> list[StoredRun]:
        names = {run.experiment for run in chosen}
        if all(run.run_id in self._held for run in chosen):
            data = {run.run_id: self._held[run.run_id].data for run in chosen}
        else:
            numbers = [e.experiment_id for e in self._experiments() if e.name in names]
            data = {run.info.run_id: run.data for run in self._search(numbers)}
        return [
            _stored(run, data[run.run_id].metrics, data[run.run_id].params, data[run.run_id].tags)
            for run in chosen
            if run.run_id in data  # deleted for good meanwhile
        ]

    def _experiments(self) -> Sequence[Experiment]:
        """Deleted ones too, asked once. UserError when the server does not answer."""
        from mlflow.entities import ViewType

        if self._known is None:
            try:
                self._known = self.client.search_experiments(view_type=ViewType.ALL, max_results=1000)
            except UserError:
                raise
            except Exception as error:
                raise unopened(self.store, error) from error
        return self._known

    def _search(self, experiments: list[str]) -> Iterable[Any]:
        from mlflow.entities import ViewType
        from mlflow.exceptions import MlflowException

        token, newest = None, ["attributes.start_time DESC"]
        while experiments:
            try:
                page = self.client.search_runs(
                    experiments, run_view_type=ViewType.ALL, max_results=1000, order_by=newest, page_token=token
                )
            except MlflowException as error:
                raise UserError("the store does not respond", where=self.store.shown, why=short(error)) from error
            yield from page
            token = page.token
            if not token:
                return


def _short_text(path: Path) -> str | None:
    """The text of a file; None for one that is missing, no text, or above TEXT_LIMIT bytes."""
    try:
        return path.read_text(encoding="utf-8") if path.stat().st_size <= TEXT_LIMIT else None
    except (OSError, UnicodeDecodeError):
        return None


def find_listed_run(listed: Sequence[ListedRun], name: str, shown: str) -> ListedRun:
    """The newest run with this id, begin of an id, or name. UserError for none, and for one that was deleted.

    shown: the store, for the message.
    """
    hits = [r for r in listed if r.run_id == name or r.name == name or (len(name) >= 6 and r.run_id.startswith(name))]
    alive = next((r for r in hits if not r.deleted), None)
    if alive is not None:
        return alive
    if hits:
        do = "restore it in `compress ui` (State: Deleted), or remove it from the command"
        raise UserError(f"run '{printable(name, 80)}' was deleted", where=shown, do=do)
    known = {r.name for r in listed if not r.deleted}
    hint = did_you_mean(name, known) if known else "the store has no runs"
    raise UserError(f"no run and no model folder '{printable(name, 80)}'", where=shown, do=printable(hint, 400))


def in_experiment(listed: Sequence[ListedRun], experiment: str) -> list[ListedRun]:
    """The runs of an experiment that are not deleted. UserError naming the nearest when there is no such experiment."""
    found = [r for r in listed if r.experiment == experiment and not r.deleted]
    if found:
        return found
    known = {r.experiment for r in listed if not r.deleted}
    what = f"no experiment '{printable(experiment, 80)}' with runs in the store"
    raise UserError(what, where="--experiment", do=did_you_mean(experiment, known))


def local_artifacts(address: str) -> Path | None:
    """The folder that an address of artifacts means on this machine; None for one of a server."""
    parts = urlsplit(address)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    return Path(address) if address and not parts.scheme else None


def _listed(row: Sequence[Any], deleted: bool) -> ListedRun:
    run_id, name, experiment, started, artifacts, status = row
    place = str(artifacts or "")
    return ListedRun(str(run_id), str(name or run_id), str(experiment), int(started or 0), place, deleted, str(status))


def _stored(
    run: ListedRun, metrics: Mapping[str, float], params: Mapping[str, str], tags: Mapping[str, str]
) -> StoredRun:
    said = (dict(metrics), dict(params), dict(tags))
    return StoredRun(run.run_id, run.name, run.experiment, run.started_ms, run.artifacts, *said, run.status)
