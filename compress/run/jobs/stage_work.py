"""What a stage computes before its first step, as work for several workers: each prepares the stage, which loads its
models once, and makes parts until none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions
from compress.data.tables.table import format_count
from compress.run.announced import prepare_announced
from compress.run.jobs.work import ByWorkers, WorkerJob, ending_all
from compress.stages.shared.stage import SharedParts, StageServices
from compress.storage.signals import StopFlag


@dataclass(frozen=True)
class StageWork(ByWorkers):
    """What all workers share. base: the stage's work folder.  announced: the stage, as `announce_stage` describes it.
    parts: what is shared, in the process that hands it out.  read: files and folders that the workers read."""

    base: Path
    options: RunOptions
    announced: Mapping[str, Any]
    parts: SharedParts | None = None
    read: tuple[str, ...] = ()

    def list_missing(self) -> list[str]:
        """As of `ShardWork`."""
        assert self.parts is not None
        return [*self.parts.list_missing()]

    def describe(self, missing: int) -> str:
        """As of `ShardWork`."""
        assert self.parts is not None
        return f"{self.parts.noun}: {format_count(missing, 'shard')} missing"

    def run(self, job: WorkerJob, console: Console) -> None:
        """Make parts until none is left that nobody has taken. Raises what the stage does, and Stopped after a
        signal."""
        if self.parts is not None:  # alone, in the process that has prepared the stage already
            self.parts.make()
            return
        with StopFlag() as stop, ending_all(self.base):
            services = StageServices(console.progress, stop.check, claims=self.base)
            stage = prepare_announced(self.announced, self.options.chain, console, say=console.note, workshop=services)
            assert stage.prepared.opening is not None
            stage.prepared.opening()

    def pack(self, job: WorkerJob) -> dict[str, Any]:
        """As of `Work`."""
        chain = self.options.chain
        return {
            "kind": "stage",
            "job": job.pack(),
            "options": {"threads": self.options.threads},
            "chain": None if chain is None else asdict(chain),
            "announced": dict(self.announced), "base": str(self.base),
            "argv": sys.argv,
        }  # fmt: skip

    def list_paths(self, jobs: Iterable[WorkerJob]) -> list[str]:
        """As of `Work`."""
        return [*self.read]


def unpack_stage(packed: Mapping[str, Any]) -> tuple[WorkerJob, StageWork]:
    """What `StageWork.pack` packed."""
    chain = None if packed["chain"] is None else ChainOptions(**packed["chain"])
    options = RunOptions(**packed["options"], chain=chain)
    return WorkerJob.unpack(packed["job"]), StageWork(Path(packed["base"]), options, packed["announced"])
