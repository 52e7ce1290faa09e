"""What an executor needs of jobs, whatever they do: runs of recipes (`job`), rows of files (`row_work`), or the long
work of a stage (`stage_work`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.run.folder import JOB_LOG
from compress.storage import claims

_OF_ONE_JOB = (ExitCode.DATA, ExitCode.RESOURCES, ExitCode.BUG)


class AnyJob(Protocol):
    """name: unique among the jobs of a command; it names the job in messages.  title: the line that says that it
    starts.  folder: its own.  log: what it prints, where another process does it."""

    @property
    def name(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def folder(self) -> Path: ...

    @property
    def log(self) -> Path: ...


class Work(Protocol):
    """What all jobs of a command share. noun: one of them, for people.  tracked: whether they log to a store.
    less_memory: what to do about a job that memory ran out for.  copies: of the weights of its models that a job holds,
    gradients and states of the optimizer included."""

    noun: ClassVar[str]
    tracked: ClassVar[bool]
    less_memory: ClassVar[str]
    copies: ClassVar[int]

    @property
    def base(self) -> Path:
        """The folder around theirs, which the command that resumes names."""
        ...

    @property
    def options(self) -> RunOptions: ...

    def run(self, job: Any, console: Console) -> None:
        """Do a job in this process, and leave what it made in the folder."""
        ...

    def pack(self, job: Any) -> dict[str, Any]:
        """A job as plain data, which is read in another process (`child`): `kind` says of what, `job` its folder,
        `options` those that its process reads, `argv` the command."""
        ...

    def list_paths(self, jobs: Iterable[Any]) -> list[str]:
        """The local files and folders that the jobs read."""
        ...

    def list_written(self) -> list[str]:
        """Folders beside `base` that the jobs write: all machines must share them."""
        ...


@dataclass(frozen=True)
class WorkerJob:
    """A worker that makes shards until none is left. folder: of its log."""

    name: str
    title: str
    folder: Path

    @property
    def log(self) -> Path:
        """What it prints, where it is another process."""
        return self.folder / JOB_LOG

    def pack(self) -> dict[str, str]:
        """As plain data."""
        return {"name": self.name, "title": self.title, "folder": str(self.folder)}

    @classmethod
    def unpack(cls, packed: dict[str, str]) -> WorkerJob:
        """What `pack` packed."""
        return cls(packed["name"], packed["title"], Path(packed["folder"]))


class ByWorkers:
    """What all work in shards says of its jobs, as of `Work`: they are workers, which load models and train nothing."""

    noun: ClassVar[str] = "worker"
    tracked: ClassVar[bool] = False
    less_memory: ClassVar[str] = "use fewer --workers"
    copies: ClassVar[int] = 2

    def list_written(self) -> list[str]:
        """As of `Work`: none."""
        return []


class ShardWork(Work, Protocol):
    """Work in shards, which workers share: each takes the next one that nobody has, until none is left."""

    def list_missing(self) -> Sequence[object]:
        """Shards that are not there."""
        ...

    def describe(self, missing: int) -> str:
        """What a worker does where so many shards are missing, for people."""
        ...

    def hand_over(self) -> None:
        """Write what workers in other processes read, before the first of them starts."""
        ...


def concerns_one(error: UserError) -> bool:
    """Whether other jobs need not meet the error of one: its numbers, memory, or a bug."""
    return error.code in _OF_ONE_JOB


@contextmanager
def ending_all(base: Path) -> Iterator[None]:
    """Inside a worker: an error that the others would meet too ends their work."""
    try:
        yield
    except UserError as error:
        if not concerns_one(error):
            with suppress(UserError):
                claims.take(base, claims.FAILED)
        raise
