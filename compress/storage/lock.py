"""One run per output folder, and what became of it.

The lock is the operating system's: it dies with its holder, whatever kills that. `run.json` beside it says who holds
it. Whether a run is alive is never stored but derived: from the process itself on its own machine, from heartbeat and
lock when asked on another one.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

from filelock import FileLock, Timeout

from compress.errors import ExitCode, UserError, printable
from compress.storage import atomic, foreign
from compress.storage.faults import fault, point

LOCK = ".run.lock"
RECORD = "run.json"
_HEARTBEAT = 15.0
_STALE = 120.0
# A second run is refused within this; it covers the moment in which `status` elsewhere tries the lock.
_PATIENCE = 0.5

_LOCKED = point("lock.after_acquire")
_RECORDED = point("lock.after_record")
_RELEASING = point("lock.before_release")


@dataclass(frozen=True)
class Holder:
    """Who runs in a folder. start: UTC, ISO 8601.  ticks: start of the process by a clock that nobody sets.

    heartbeat: seconds since 1970, refreshed while the run lives.
    """

    pid: int
    host: str
    boot_id: str
    start: str
    ticks: str
    heartbeat: float

    def __str__(self) -> str:
        return printable(f"process {self.pid} on {self.host}, started {self.start}", 200)


@dataclass(frozen=True)
class RunStatus:
    """state: running; dead (it was killed and can be resumed); none (nobody, or it ended by itself)."""

    state: Literal["running", "dead", "none"]
    holder: Holder | None = None


class FolderInUseError(UserError):
    """Another run has the folder, or took it first."""


def make_in_use_error(where: str, holder: Holder | None) -> FolderInUseError:
    """holder: who has it; None: not known."""
    why, do = str(holder or "another process"), "wait for it, stop it, or choose another folder"
    return FolderInUseError("another run uses this folder", where=where, why=why, do=do, code=ExitCode.REFUSED)


@contextlib.contextmanager
def run_lock(folder: str | os.PathLike[str]) -> Iterator[Holder]:
    """Hold `folder`, made if need be, for one run; `run.json` in it says so until the block ends.

    Raises FolderInUseError (refused, exit 3) naming the holder when another run has it.
    """
    path = atomic.make_folder(folder)
    holder = _myself()
    with _held(path / LOCK, _PATIENCE, lambda: _occupied(path)):
        fault(_LOCKED)
        atomic.write_json(path / RECORD, asdict(holder))
        fault(_RECORDED)
        stop = threading.Event()
        thread = threading.Thread(target=_beat, args=(path / RECORD, holder, stop), name="heartbeat", daemon=True)
        thread.start()
        try:
            yield holder
        finally:
            stop.set()
            thread.join()
            fault(_RELEASING)
            with contextlib.suppress(OSError):
                (path / RECORD).unlink()


@contextlib.contextmanager
def file_lock(path: str | os.PathLike[str], timeout: float = 60.0) -> Iterator[None]:
    """Hold the lock file `path` (made if need be, left behind), waiting up to `timeout` seconds for it.

    For short steps that several processes may take at once, such as the first touch of a store. Raises UserError
    (refused, exit 3) when the time is over.
    """
    where = Path(os.path.abspath(path))
    atomic.make_folder(where.parent)

    def occupied() -> UserError:
        why, do = f"another process has held it for {timeout:g} s", "check which process holds it, or try again"
        return UserError("is locked", where=str(where), why=why, do=do, code=ExitCode.REFUSED)

    with _held(where, timeout, occupied):
        yield


def status(folder: str | os.PathLike[str]) -> RunStatus:
    """Whether a run lives in `folder`, or died there without saying goodbye. Changes nothing."""
    holder = read_holder(folder)
    if holder is None:
        return RunStatus("none")
    return RunStatus("running" if _alive(holder, Path(folder)) else "dead", holder)


def read_holder(folder: str | os.PathLike[str]) -> Holder | None:
    """What `run.json` of the folder says; None when there is none that can be read."""
    try:
        content = foreign.parse_json(foreign.read_bytes(Path(folder) / RECORD, 1 << 16), RECORD)
        values: dict[str, Any] = {field.name: content[field.name] for field in fields(Holder)}
        return Holder(**values | {"pid": int(values["pid"]), "heartbeat": float(values["heartbeat"])})
    except (UserError, KeyError, TypeError, ValueError):
        return None


@contextlib.contextmanager
def _held(path: Path, timeout: float, occupied: Any) -> Iterator[None]:
    lock = FileLock(path, timeout=timeout)
    try:
        lock.acquire()
    except Timeout:
        raise occupied() from None
    except OSError as error:
        raise atomic.explain(error, path) from error
    try:
        yield
    finally:
        lock.release()


def _occupied(folder: Path) -> FolderInUseError:
    holder = read_holder(folder)
    # Right after its start a run holds the lock before its record is written: a dead one's record is not its name.
    alive = holder is not None and (holder.host != socket.gethostname() or _ticks(holder.pid) == holder.ticks)
    return make_in_use_error(str(folder), holder if alive else None)


def _beat(path: Path, holder: Holder, stop: threading.Event) -> None:
    while not stop.wait(_HEARTBEAT):
        # A disk that is full now must not end the run: the lock stands without the heartbeat.
        with contextlib.suppress(UserError, OSError):
            atomic.write_json(path, asdict(holder) | {"heartbeat": time.time()})


def _myself() -> Holder:
    start = datetime.now(UTC).isoformat(timespec="seconds")
    pid = os.getpid()
    return Holder(pid, socket.gethostname(), _boot_id(), start, _ticks(pid) or "", time.time())


def _alive(holder: Holder, folder: Path) -> bool:
    """Death must be proved: no such process (here) or no heartbeat (elsewhere), and besides a lock that is free."""
    if holder.host == socket.gethostname():
        if holder.boot_id == _boot_id() and _ticks(holder.pid) == holder.ticks:
            return True
    elif 0 <= time.time() - holder.heartbeat < _STALE:
        return True
    return _is_locked(folder / LOCK)


def _is_locked(path: Path) -> bool:
    if not path.exists():
        return False
    lock = FileLock(path, timeout=0)
    try:
        with lock:
            return False
    except Timeout:
        return True
    except OSError:  # no right to try: then it cannot be proved dead
        return True


def _boot_id() -> str:
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


def _ticks(pid: int) -> str | None:
    """When the process started, by a clock that is never set; None when it is not there, or only as a zombie."""
    if os.path.isdir("/proc/self"):
        try:
            # The name in parentheses may itself hold spaces and parentheses.
            after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if after_name[0] in "ZX" else after_name[19]
    import psutil

    with contextlib.suppress(psutil.Error):
        return str(psutil.Process(pid).create_time())
    return None
