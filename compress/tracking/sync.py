"""`compress sync`: uploads runs that could not be sent to MLflow."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from compress.errors import ExitCode, UserError
from compress.storage.lock import run_lock
from compress.tracking import records as rec
from compress.tracking.relocating import require_in_place
from compress.tracking.replay import Replay
from compress.tracking.state import not_beyond
from compress.tracking.store import Store, resolve_store, short

DEPTH = 6  # folders below the one that is named


@dataclass(frozen=True)
class SyncedRun:
    """folder: of the run.  sent: records sent now.  refused: records the store will never take.  live: left alone, as
    its process still runs."""

    folder: Path
    name: str
    run_id: str | None
    status: str
    sent: int
    refused: int
    live: bool = False


def find_tracked_folders(top: Path) -> dict[Path, int]:
    """Folders of runs in `top` and below → when each began, in ms."""
    found = [p.parent.parent for p in _journals(top, DEPTH)]
    return {folder: rec.read(folder).start["t"] for folder in found if rec.has_journal(folder)}


def _journals(folder: Path, depth: int) -> Iterator[Path]:
    journal = rec.journal_path(folder)
    if journal.is_file():
        yield journal
    if depth > 0:
        for child in sorted(p for p in folder.iterdir() if p.is_dir() and not p.is_symlink() and p.name[0] != "."):
            yield from _journals(child, depth - 1)


def sync(*tops: Path, uri: str | None = None, warn: Callable[[str], None] = lambda _: None) -> list[SyncedRun]:
    """Sends what is missing of every run in these folders; a run whose process died becomes KILLED.

    Sending twice changes nothing. UserError: no run here; the store cannot be named, or does not answer. One that takes
    no files gets the figures of every run first.
    """
    starts: dict[Path, int] = {}
    for top in tops:
        if not top.is_dir():
            raise UserError("no such folder", where=str(top), do="name the folder of a run")
        found = find_tracked_folders(top)
        if not found:
            raise UserError(
                "no tracked run in this folder",
                where=str(top),
                why=f"no {rec.FOLDER}/journal.jsonl in it or its subfolders",
            )
        starts |= found
    refused: list[UserError] = []
    begun_first = sorted(starts, key=lambda folder: starts[folder])  # a parent before its children
    done = [_sync_run(one, uri, warn, refused) for one in begun_first]
    if refused:
        raise refused[0]
    return done


def _sync_run(folder: Path, uri: str | None, warn: Callable[[str], None], refused: list[UserError]) -> SyncedRun:
    """`sync` for one run's folder. refused: takes the error of files that the store does not accept."""
    journal = rec.read(folder)
    store = store_of(folder, journal, uri)
    try:
        with run_lock(folder / rec.FOLDER):
            return _send(folder, store, warn, refused)
    except UserError as error:
        if error.code != ExitCode.REFUSED:
            raise
        return SyncedRun(folder, journal.start["name"], None, rec.RUNNING, 0, 0, live=True)


def _send(folder: Path, store: Store, warn: Callable[[str], None], refused: list[UserError]) -> SyncedRun:
    journal = rec.read(folder)  # again, now that nobody else may write
    not_beyond(rec.state_path(folder), len(journal.records))
    if journal.status == rec.RUNNING:
        _bury(folder, journal)
    replay = Replay(folder, store, warn)
    try:
        replay.send_all()
    except Exception as error:
        raise _unaccepted(folder, store, "the metrics", error) from error
    try:
        if not refused:
            replay.send_files()
    except Exception as error:
        refused.append(_unaccepted(folder, store, "the files; metrics and status of the runs are uploaded", error))
    state = replay.state
    status = rec.read(folder).status
    return SyncedRun(folder, journal.start["name"], state.run_id, status, replay.sent_now, state.refused)


def _unaccepted(folder: Path, store: Store, what: str, error: Exception) -> UserError:
    if isinstance(error, UserError):  # says what to do already
        return error
    return UserError(
        f"{store.shown} does not accept {what}",
        where=str(folder),
        why=short(error),
        do="check that the store responds, then run the same command again; no data is lost",
        code=ExitCode.ENVIRONMENT,
    )


def _bury(folder: Path, journal: rec.JournalContent) -> None:
    """Writes the ending that a killed process could not: at the time of its last sign of life."""
    own = rec.open_journal(folder)
    own.append({"op": "finish", "t": journal.records[-1]["t"], "status": rec.KILLED})
    own.close()


def store_of(folder: Path, journal: rec.JournalContent, uri: str | None) -> Store:
    """The store to send to: the one named now, else the environment's, else the one the run wrote to; of a project that
    was moved or copied together with its store, the project's own."""
    named = resolve_store(uri)
    if named.chosen != "default":
        return named
    if "***@" in journal.store:
        raise UserError(
            f"the run was sent to {journal.store}, whose password is not stored",
            where=rec.FOLDER,
            do="set MLFLOW_TRACKING_URI to the full address",
        )
    recorded = Store(journal.store, "recorded")
    if recorded.database is None or named.database is None or not named.database.exists():
        return recorded
    before = Path(journal.start["tags"].get("compress.folder", ""))
    if recorded.database.exists() and not _is_copied(before, recorded.database, folder, named.database):
        return recorded
    require_in_place(named)
    return named


def _is_copied(before: Path, old: Path, folder: Path, new: Path) -> bool:
    """Whether a run's folder, which was `before`, lies beside the database `new` as that lay beside the database
    `old`."""
    project, copy = old.parent.parent, new.parent.parent
    if project.resolve() == copy.resolve() or not before.is_relative_to(project):
        return False
    return folder.resolve() == (copy / before.relative_to(project)).resolve()
