"""An executor that does what worker processes do, in this process: it costs none of their starts."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from compress.console import Console
from compress.errors import ExitCode, Stopped, UserError
from compress.run.jobs.child import explain_end, run_packed
from compress.run.jobs.processes import Ended
from compress.run.jobs.work import Work
from compress.storage import claims
from compress.storage.signals import StopFlag


@dataclass
class WorkersHere:
    """Each job is packed, and unpacked again. claim: the first worker is killed while it makes this shard.  stopped: a
    signal comes after the first worker has begun."""

    claim: str | None = None
    stopped: bool = False
    places: int = 2
    elsewhere: bool = True
    begun: list[dict[str, Any]] = field(default_factory=list)

    def run(self, todo: deque[Any], shared: Work, console: Console, stop: StopFlag) -> Iterator[Ended]:
        while todo:
            job = todo.popleft()
            self.begun.append(json.loads(json.dumps(shared.pack(job))))
            if len(self.begun) == 1 and self.claim is not None:
                claims.take(shared.base, self.claim)
                yield Ended(job, UserError("killed", code=ExitCode.RESOURCES))
                continue
            if self.stopped:
                stop.request("SIGINT")
                yield Ended(job, Stopped("stopped by a signal"))
                return
            code = run_packed(self.begun[-1])
            yield Ended(job, explain_end(code, job.folder, job.log, shared.less_memory))
