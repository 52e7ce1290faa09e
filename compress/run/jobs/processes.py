"""Jobs in this process, one after the other, and in local worker processes, several at once."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from compress.console import Console
from compress.errors import Stopped, UserError
from compress.run.jobs.child import Process, explain_end, interrupt, start
from compress.run.jobs.memory import KillWatch
from compress.run.jobs.work import AnyJob, Work
from compress.storage.signals import StopFlag

_POLL_SECONDS = 0.1
_TAIL = 4096
GPUS = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class Ended:
    """A job that ended. error: why it failed, or that it was stopped; None: its outcome is in its folder."""

    job: AnyJob
    error: UserError | Stopped | None = None


class Executor(Protocol):
    """Does jobs. elsewhere: whether other processes do them.  places: jobs at once."""

    elsewhere: bool

    @property
    def places(self) -> int: ...

    def run(self, todo: deque[AnyJob], shared: Work, console: Console, stop: StopFlag) -> Iterator[Ended]:
        """Take jobs from `todo` until it is empty, and report each as it ends. After a signal (`stop`) those that run
        are asked to stop, and no other is started."""
        ...


class ThisProcess:
    """One after the other, here; a signal raises Stopped, as in a single run."""

    elsewhere = False
    places = 1

    def run(self, todo: deque[AnyJob], shared: Work, console: Console, stop: StopFlag) -> Iterator[Ended]:
        while todo:
            job = todo.popleft()
            console.note(job.title)
            try:
                shared.run(job, console)
            except UserError as error:
                yield Ended(job, error)
            else:
                yield Ended(job)


@dataclass
class LocalWorkers:
    """Up to `workers` processes at once on this machine. threads: of each.  gpus: names of the GPUs, dealt out in turn;
    none: each sees what this process sees."""

    workers: int
    threads: int
    gpus: list[str] = field(default_factory=list)
    elsewhere = True

    @property
    def places(self) -> int:
        """As many as there are workers."""
        return self.workers

    def run(self, todo: deque[AnyJob], shared: Work, console: Console, stop: StopFlag) -> Iterator[Ended]:
        running: dict[int, tuple[AnyJob, Process]] = {}
        asked, kernel = False, KillWatch()
        with console.board(f"{shared.noun}s", len(todo)) as board:
            try:
                while (todo and not stop.requested) or running:
                    while todo and len(running) < self.workers and not stop.requested:
                        place = min(set(range(self.workers)) - set(running))
                        job = todo.popleft()
                        running[place] = (job, self._start(job, shared, place))
                        board.begin(job.name)
                    if stop.requested and not asked:
                        asked = True
                        for _, process in running.values():
                            interrupt(process)
                    for place, (job, process) in list(running.items()):
                        code = process.poll()
                        if code is None:
                            board.say(job.name, last_line(job.log))
                            continue
                        del running[place]
                        close(process)
                        by_kernel = code != 0 and kernel.has_killed()
                        error = explain_end(code, job.folder, job.log, shared.less_memory, by_kernel=by_kernel)
                        board.end(job.name, describe(error))
                        yield Ended(job, error)
                    board.draw()
                    time.sleep(_POLL_SECONDS)
            finally:  # only where this loop was left: the processes stop as after a signal
                for _, process in running.values():
                    interrupt(process, signal.SIGTERM)
                for _, process in running.values():
                    close(process)

    def _start(self, job: AnyJob, shared: Work, place: int) -> Process:
        environ = {GPUS: self.gpus[place % len(self.gpus)]} if self.gpus else {}
        return start(shared.pack(job), job.log, threads=self.threads, environ=environ)


def close(process: Process) -> None:
    """Wait for a process that ends, and close its pipe."""
    process.wait()
    if process.stdin is not None:
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()


def describe(error: UserError | Stopped | None) -> str:
    """How a job ended, in a few words."""
    if error is None:
        return "done"
    return "stopped" if isinstance(error, Stopped) else "failed"


def last_line(log: Path) -> str:
    """The newest line of a log that is being written; empty where there is none."""
    lines = read_tail(log, 2)
    return lines[-1] if lines else ""


def read_tail(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not empty."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _TAIL))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line for line in text.splitlines() if line.strip()][-count:]
