"""What a stage computes before its first step, as work for several workers: each loads the models that are asked once,
and makes parts until none is left."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions
from compress.errors import format_count
from compress.run.announced import build_announced
from compress.run.jobs.work import ByWorkers, WorkerJob, ending_all
from compress.stages.shared.stage import SharedParts, SharingStage, StageServices
from compress.storage.signals import StopFlag
from compress.storage.trees import remove_tree

HANDED = "handed-over"
"""In the stage's work folder, while workers run: what they read."""


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

    def hand_over(self) -> None:
        """As of `ShardWork`."""
        assert self.parts is not None
        self.parts.hand_over(self.base / HANDED)

    def clean(self) -> None:
        """Remove what was handed over, when no worker is left."""
        remove_tree(self.base / HANDED, self.base)

    def run(self, job: WorkerJob, console: Console) -> None:
        """Make parts until none is left that nobody has taken. Raises what the stage does, and Stopped after a
        signal."""
        if self.parts is not None:  # alone, in the process that has prepared the stage already
            self.parts.make()
            return
        with StopFlag() as stop, ending_all(self.base):
            services = StageServices(console.progress, stop.check, claims=self.base)
            chain = self.options.chain
            stage, _, _ = build_announced(self.announced, chain, console, say=console.note, workshop=services)
            cast(SharingStage, stage).make_parts(self.base / HANDED)

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

    def list_written(self) -> list[str]:
        """As of `Work`."""
        return [] if self.parts is None else [str(self.parts.place)]


def unpack_stage(packed: Mapping[str, Any]) -> tuple[WorkerJob, StageWork]:
    """What `StageWork.pack` packed."""
    chain = None if packed["chain"] is None else ChainOptions(**packed["chain"])
    options = RunOptions(**packed["options"], chain=chain)
    return WorkerJob.unpack(packed["job"]), StageWork(Path(packed["base"]), options, packed["announced"])
