"""Shards of rows as work for several workers: each loads the model once and answers shards until none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.predict.rows.answers import Answerer, ModelRequest
from compress.predict.rows.plan import Plan, Shard
from compress.predict.rows.shards import SHARDS, ShardFolder, ShardWorker
from compress.run.jobs.work import ByWorkers, WorkerJob, ending_all
from compress.storage import atomic, safe
from compress.storage.signals import StopFlag
from compress.storage.trees import remove_tree

PLAN = "plan.json"
PLAN_LIMIT = 256 << 20
"""Bytes: a shard takes about 200."""


@dataclass(frozen=True)
class RowWork(ByWorkers):
    """What all workers share. base: the folder with the plan and the shards.  request: which model answers.  keep_bad:
    as of `ShardWorker`.  answerer: the loaded model, for a worker in this process."""

    base: Path
    options: RunOptions
    request: ModelRequest
    plan: Plan
    keep_bad: bool
    answerer: Answerer | None = None

    def list_missing(self) -> list[Shard]:
        """Shards that are not there."""
        return [shard for shard in self.plan.shards if not ShardFolder.of(self.base, shard).path.exists()]

    def describe(self, missing: int) -> str:
        """As of `ShardWork`."""
        return f"answering {missing} of {len(self.plan.shards)} shards"

    def hand_over(self) -> None:
        """Nothing: workers read the plan and the files."""

    def remove_damaged(self, console: Console) -> None:
        """Remove shards whose files are not what their records say, so that they are made again."""
        atomic.make_folder(self.base / SHARDS)
        atomic.clean(self.base / SHARDS)
        with console.slow_progress("check the shards", len(self.plan.shards), "shards") as progress:
            for number, shard in enumerate(self.plan.shards, 1):
                folder = ShardFolder.of(self.base, shard)
                faults = folder.list_faults() if folder.path.exists() else []
                if faults:
                    console.warn(f"shard {shard.name} is made again: {faults[0]}")
                    remove_tree(folder.path, self.base)
                progress.update(number)

    def run(self, job: WorkerJob, console: Console) -> None:
        """Answer shards until none is left that nobody has taken. Raises as `ShardWorker`, and Stopped after a
        signal."""
        answerer = self.answerer or self.request.open(console)
        alone = sum(shard.rows for shard in self.list_missing()) if self.answerer is not None else None
        watch = console.slow_progress(answerer.label, alone, "rows")
        with StopFlag() as stop, watch as progress, ending_all(self.base):
            ShardWorker(self.base, self.plan, answerer, self.keep_bad, progress.update, stop.check).run()

    def pack(self, job: WorkerJob) -> dict[str, Any]:
        """The plan is not packed: it lies in the folder."""
        return {
            "kind": "rows",
            "job": job.pack(),
            "options": {"threads": self.options.threads},
            "request": self.request.pack(), "base": str(self.base), "keep_bad": self.keep_bad,
            "argv": sys.argv,
        }  # fmt: skip

    def list_paths(self, jobs: Iterable[WorkerJob]) -> list[str]:
        """The model and the files."""
        return [str(self.request.folder), *(file.path for file in self.plan.files if isinstance(file.place, Path))]


def unpack_rows(packed: Mapping[str, Any]) -> tuple[WorkerJob, RowWork]:
    """What `RowWork.pack` packed, with the plan of its folder."""
    base, job = Path(packed["base"]), WorkerJob.unpack(packed["job"])
    plan = Plan.from_json(safe.read_json(base / PLAN, PLAN_LIMIT)["plan"])
    options = RunOptions(**packed["options"])
    return job, RowWork(base, options, ModelRequest.unpack(packed["request"]), plan, packed["keep_bad"])
