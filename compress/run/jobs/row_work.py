"""Shards of rows as work for several workers: each loads the model once and answers shards until none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import Stopped, UserError
from compress.predict.rows.answers import Answerer, ModelRequest
from compress.predict.rows.plan import Plan, Shard
from compress.predict.rows.shards import FAILED, ShardFolder, ShardWorker
from compress.run.folder import JOB_LOG
from compress.run.jobs.work import concerns_one
from compress.storage import claims, safe
from compress.storage.signals import StopFlag

PLAN = "plan.json"
PLAN_LIMIT = 256 << 20
"""Bytes: a shard takes about 200."""


@dataclass(frozen=True)
class RowJob:
    """A worker. folder: of its log."""

    name: str
    title: str
    folder: Path

    @property
    def log(self) -> Path:
        """What it prints, where it is another process."""
        return self.folder / JOB_LOG


@dataclass(frozen=True)
class RowWork:
    """What all workers share. base: the folder with the plan and the shards.  request: which model answers.  keep_bad:
    as of `ShardWorker`.  answerer: the loaded model, for a worker in this process."""

    base: Path
    options: RunOptions
    request: ModelRequest
    plan: Plan
    keep_bad: bool
    answerer: Answerer | None = None
    noun: ClassVar[str] = "worker"
    tracked: ClassVar[bool] = False
    less_memory: ClassVar[str] = "use fewer --workers"

    def list_missing(self) -> list[Shard]:
        """Shards that are not there."""
        return [shard for shard in self.plan.shards if not ShardFolder.of(self.base, shard).path.exists()]

    def run(self, job: RowJob, console: Console) -> None:
        """Answer shards until none is left that nobody has taken. Raises as `ShardWorker`, and Stopped after a
        signal."""
        answerer = self.answerer or self.request.open(console)
        alone = sum(shard.rows for shard in self.list_missing()) if self.answerer is not None else None
        with StopFlag() as stop, console.slow_progress(answerer.label, alone, "rows") as progress:

            def check() -> None:
                if stop.requested:
                    raise Stopped(f"stopped by {stop.requested}")

            worker = ShardWorker(self.base, self.plan, answerer, self.keep_bad, progress.update, check)
            try:
                worker.run()
            except UserError as error:
                if not concerns_one(error):
                    with suppress(UserError):
                        claims.take(self.base, FAILED)
                raise

    def pack(self, job: RowJob) -> dict[str, Any]:
        """The plan is not packed: it lies in the folder."""
        return {
            "kind": "rows",
            "job": {"name": job.name, "title": job.title, "folder": str(job.folder)},
            "options": {"threads": self.options.threads},
            "request": self.request.pack(), "base": str(self.base), "keep_bad": self.keep_bad,
            "argv": sys.argv,
        }  # fmt: skip

    def list_paths(self, jobs: Iterable[RowJob]) -> list[str]:
        """The model and the files."""
        return [str(self.request.folder), *(file.path for file in self.plan.files if isinstance(file.place, Path))]


def unpack_rows(packed: Mapping[str, Any]) -> tuple[RowJob, RowWork]:
    """What `RowWork.pack` packed, with the plan of its folder."""
    base, said = Path(packed["base"]), packed["job"]
    job = RowJob(said["name"], said["title"], Path(said["folder"]))
    plan = Plan.from_json(safe.read_json(base / PLAN, PLAN_LIMIT)["plan"])
    options = RunOptions(**packed["options"])
    return job, RowWork(base, options, ModelRequest.unpack(packed["request"]), plan, packed["keep_bad"])
