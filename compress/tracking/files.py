"""Uploads the files of a run apart from its figures: a store of files that is down holds nothing else back.

A record whose files are to be sent is set aside: `state.json` keeps its number until they have arrived, so that
`compress sync` finds it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from compress.storage.manifest import files_below
from compress.storage.trees import second_names
from compress.tracking.bounded import wait_longer
from compress.tracking.records import Record

if TYPE_CHECKING:
    from mlflow.store.artifact.artifact_repo import ArtifactRepository

    from compress.tracking.store import Store

AT_ONCE = 8
"""Files that travel at the same time: a server answers each after a while, and most files are small."""
UPLOAD_SECONDS = 120.0


def patience() -> AbstractContextManager[None]:
    """Longer time-outs while files travel: a server answers a large file late and is not dead for it."""
    return wait_longer(UPLOAD_SECONDS)


@dataclass(frozen=True, eq=False)
class FileJob:
    """number: of its record in the journal.  place: the file or folder."""

    number: int
    record: Record
    place: Path

    @property
    def model(self) -> str | None:
        """The key of the model whose folder it is; None for a file of the run."""
        return self.record["key"] if self.record["op"] == "model" else None

    @property
    def target(self) -> tuple[str, str]:
        """The same for two records of one file: what is sent last would stay anyway."""
        return (str(self.place), self.model or self.record["folder"])


class FileJobs:
    """The records of one run whose files have not arrived. For two threads: one adds, the other takes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._jobs: dict[int, FileJob] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    def has_model(self, key: str) -> bool:
        """Whether the files of this model stand aside."""
        with self._lock:
            return any(job.model == key for job in self._jobs.values())

    def add(self, job: FileJob) -> list[int]:
        """Sets a job aside; returns the numbers of earlier ones that it replaces."""
        with self._lock:
            replaced = [n for n, other in self._jobs.items() if other.target == job.target and n != job.number]
            for number in replaced:
                del self._jobs[number]
            self._jobs[job.number] = job
        return replaced

    def remove(self, job: FileJob) -> bool:
        """Whether it was there, and not taken away meanwhile."""
        with self._lock:
            return self._jobs.get(job.number) is job and self._jobs.pop(job.number) is job

    def waiting(self) -> list[FileJob]:
        """Those that are there now, in order."""
        with self._lock:
            return [self._jobs[number] for number in sorted(self._jobs)]

    def clear(self) -> None:
        with self._lock:
            self._jobs.clear()


def open_artifacts(store: Store, address: str) -> ArtifactRepository:
    """Where files at an address of the store are written to."""
    from mlflow.store.artifact.artifact_repository_registry import get_artifact_repository

    return get_artifact_repository(address, tracking_uri=store.uri)


def upload(repository: ArtifactRepository, place: Path, folder: str, *, inside: bool) -> list[Callable[[], None]]:
    """The calls that send a file, or each file of a folder, in parallel if one likes. A second name of a file in a
    model folder would take its room again in the store, so it is left out.

    folder: where they go, "" for the top.  inside: the content of the folder `place`, without its second names.
    """
    if not place.is_dir():
        return [partial(_send, repository, place, folder)]
    further = set(second_names(place)) if inside else set()
    names = [name for name in files_below(place) if name not in further and (place / name).is_file()]
    base = PurePosixPath(folder)
    return [partial(_send, repository, place / name, str((base / name).parent)) for name in names]


def _send(repository: ArtifactRepository, file: Path, folder: str) -> None:
    with patience():
        repository.log_artifact(str(file), None if folder in ("", ".") else folder)


def run_at_once(calls: Sequence[Callable[[], object]], most: int = AT_ONCE) -> list[Exception | None]:
    """What each call raised, if anything; `most` run at the same time, in threads that no end of a process waits
    for."""
    errors: list[Exception | None] = [None] * len(calls)
    numbers = iter(range(len(calls)))  # its next() is atomic

    def work() -> None:
        for number in numbers:
            try:
                calls[number]()
            except Exception as error:
                errors[number] = error

    helpers = [
        threading.Thread(target=work, name="tracking files", daemon=True) for _ in range(min(most, len(calls)) - 1)
    ]
    for helper in helpers:
        helper.start()
    work()
    for helper in helpers:
        helper.join()
    return errors
