"""The durable steps that tests interrupt, and a server that runs them in forked children, one per fault.

Run as a script it reads one JSON job per line, {"scenario", "folder", "fault"}, forks, and answers with the child's
wait status: one import pays for all kills.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sqlite3
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

OLD, NEW = "old", "new"
CALL = "call:"
"""A job's fault may also be `call:N`: SIGKILL just before the Nth system call on files."""


def save(folder: Path) -> None:
    """A checkpoint beside an earlier one."""
    from compress.storage import atomic

    with atomic.new_folder(folder / "step-2") as temp:
        _fill(temp, NEW)


def replace(folder: Path) -> None:
    from compress.storage import atomic

    with atomic.new_folder(folder / "step-1", replace=True) as temp:
        _fill(temp, NEW)


def replace_without_exchange(folder: Path) -> None:
    """As on a file system that cannot exchange two names."""
    from compress.storage import atomic

    exchange, atomic._exchange = atomic._exchange, lambda first, second: False
    try:
        replace(folder)
    finally:
        atomic._exchange = exchange


def remove(folder: Path) -> None:
    from compress.storage import atomic

    atomic.remove_folder(folder / "step-0")


def write_file(folder: Path) -> None:
    from compress.storage import atomic

    atomic.write_text(folder / "note.txt", NEW)


def clean(folder: Path) -> None:
    """A write that finds a half-written folder, a half-deleted one and one moved aside by dead writers."""
    from compress.storage import atomic, temporary

    for kind in (temporary.NEW, temporary.DELETED):
        (temporary.make_name_beside(folder / "step-9", kind) / "sub").mkdir(parents=True)
    if (folder / "step-1").exists():
        os.rename(folder / "step-1", temporary.make_name_beside(folder / "step-1", temporary.OLD))
    atomic.write_text(folder / "note.txt", OLD)


def journal(folder: Path) -> None:
    from compress.storage.journal import Journal

    with Journal(folder / "journal.jsonl") as open_journal:
        for i in range(3):
            open_journal.append({"i": i})


def lock(folder: Path) -> None:
    from compress.storage.lock import run_lock

    with run_lock(folder):
        pass


def remove_tree(folder: Path) -> None:
    """A folder that another program wrote."""
    from compress.storage.trees import remove_tree

    (folder / "run").mkdir(exist_ok=True)
    (folder / "run" / "artifact").write_text(OLD)
    remove_tree(folder / "run", folder)


def copy_database(folder: Path) -> None:
    from compress.storage.database import copy_database

    with contextlib.closing(sqlite3.connect(folder / "store.db")) as store, store:
        store.execute("CREATE TABLE IF NOT EXISTS content (text)")
        store.execute("INSERT INTO content VALUES (?)", (OLD,))
    copy_database(folder / "store.db", folder / "copy.db")


SCENARIOS: dict[str, Callable[[Path], None]] = {
    f.__name__: f
    for f in (
        save,
        replace,
        replace_without_exchange,
        remove,
        write_file,
        clean,
        journal,
        lock,
        remove_tree,
        copy_database,
    )
}


def prepare(folder: Path) -> None:
    """Two good checkpoints and a file, as every scenario finds them."""
    from compress.storage import atomic

    for name in ("step-0", "step-1"):
        with atomic.new_folder(folder / name) as temp:
            _fill(temp, OLD)
    atomic.write_text(folder / "note.txt", OLD)


def _fill(temp: Path, text: str) -> None:
    from compress.storage import atomic

    atomic.write_text(temp / "weights.bin", text * 1000)
    atomic.write_json(temp / "sub" / "state.json", {"content": text})


class Server:
    """Runs scenarios under faults in children of a child."""

    def __init__(self) -> None:
        root = Path(__file__).resolve().parents[2]
        environment = os.environ | {"PYTHONPATH": str(root)}
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def run(self, scenario: str, folder: Path, fault: str) -> int:
        """Exit code of the child, negative for the signal that killed it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"scenario": scenario, "folder": str(folder), "fault": fault}) + "\n")
        self._process.stdin.flush()
        return os.waitstatus_to_exitcode(int(self._process.stdout.readline()))

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()


_CALLS = ("open", "write", "fsync", "fchmod", "mkdir", "rename", "replace", "unlink", "rmdir", "listdir", "scandir")


def _kill_before_call(nth: int) -> None:
    """Count the system calls that touch the disk, die just before the nth: finer than any point we thought of."""
    calls = 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **named)

        return call

    for name in _CALLS:
        setattr(os, name, counted(getattr(os, name)))


def _child(job: dict[str, str]) -> None:
    if job["fault"].startswith(CALL):
        _kill_before_call(int(job["fault"].removeprefix(CALL)))
    else:
        os.environ["COMPRESS_FAULT"] = job["fault"]
    try:
        SCENARIOS[job["scenario"]](Path(job["folder"]))
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def _serve() -> None:
    import compress.storage.atomic
    import compress.storage.journal
    import compress.storage.lock  # noqa: F401 - imported once, before the forks

    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _child(job)
        print(os.waitpid(pid, 0)[1], flush=True)


if __name__ == "__main__":
    _serve()
