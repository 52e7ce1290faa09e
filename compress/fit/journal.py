"""The tracked runs of a fit: its own, and one below it for each model that it evaluates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compress.fit import report
from compress.fit.cost.serving import Serving
from compress.fit.make.evaluator import Evaluation
from compress.fit.request.case import Case
from compress.modelfolder import folder as modelfolder
from compress.tracking import TrackedRun, open_child


class Journal:
    """path: the folder of the fit, as it was named.  log: the fit's own tracked run."""

    def __init__(self, case: Case, serving: Serving, path: Path, log: TrackedRun) -> None:
        self.case, self.serving, self.path, self.log = case, serving, path, log

    def tags(self) -> dict[str, str]:
        """Of the runs below this one: later forecasts find by parent and data what such plans did."""
        return {
            "compress.parent_run": self.log.key,
            "compress.fit_parent": modelfolder.fingerprint(self.case.source),
            "compress.fit_data": self.case.table.fingerprint,
        }

    def name_run(self, name: str) -> str:
        """What the run of a model is called, below the fit's."""
        return f"{self.path.name}/{name}"

    def child(self, folder: Path, name: str, role: str, method: str = "fit") -> TrackedRun:
        """A run below the fit's, in `folder`, begun or continued."""
        return open_child(
            self.log, folder, name=self.name_run(name), method=method, role=role,
            quality=f"quality/{self.case.metric}", warn=self.case.console.warn, tags=self.tags(),
        )  # fmt: skip

    def record(self, folder: Path, judged: Evaluation, **params: Any) -> None:
        """Log an evaluated model in a run of its own, or in the one that trained it in `folder`."""
        plan = judged.plan
        with self.child(folder, judged.name, "stage") as run:
            told = {"runtime": self.serving.runtime, "latency.shape": str(self.serving.shape)}
            run.params({**told, "student.layers": len(plan.layers), **params})
            run.metrics(report.figures(self.case.metric, judged))
            run.note(plan.sentence(self.case.loaded.config))
