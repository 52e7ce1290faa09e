"""What the tests of tracking share: a reader of the store, short names of types."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from compress.tracking import Store, TrackedRun

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

Opener = Callable[..., TrackedRun]


class Seen:
    """A store as a reader sees it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.client: MlflowClient = store.client()

    def runs(self, experiment: str = "toy") -> list[Run]:
        found = self.client.get_experiment_by_name(experiment)
        return list(self.client.search_runs([found.experiment_id])) if found else []

    def run(self, name: str, experiment: str = "toy") -> Run:
        (found,) = [r for r in self.runs(experiment) if r.info.run_name == name]
        return found

    def points(self, run: Run, key: str) -> list[tuple[int, float]]:
        return sorted((m.step, m.value) for m in self.client.get_metric_history(run.info.run_id, key))
