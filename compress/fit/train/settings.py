"""What the trainings of a fit minimise: by the kind of the model's outputs, as the recipe for such models says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from compress.data.task import Task

Outputs = Literal["answers", "vectors", "rankings"]
"""What a model gives: answers of a task, vectors of texts, or scores that order the documents of a query."""
RECIPES: Mapping[Outputs, str] = {
    "answers": "distilbert-task", "vectors": "embed-distil", "rankings": "rerank-distil",
}  # fmt: skip
"""Recipe of each kind of outputs. Without labels, those of vectors and rankings learn what their recipe says."""


def outputs_of(task: Task) -> Outputs:
    """The kind of outputs of the models of a task."""
    if task.label_free:
        return "vectors"
    return "rankings" if task.ranks else "answers"


@dataclass(frozen=True)
class Settings:
    """Learning rate, and of models that give answers: temperature: of those that are learned.  hidden, labels: weights
    of the squared difference of hidden states and of the rows' own labels; that of the parent's answers is 1."""

    rate: float = 1e-4
    temperature: float = 2.0
    hidden: float = 1.0
    labels: float = 0.2

    def overrides(self, outputs: Outputs = "answers") -> Mapping[str, Any]:
        """As paths of the recipe."""
        rate = {"stages.0.training.learning_rate": self.rate}
        if outputs != "answers":
            return rate
        rows: list[dict[str, Any]] = [
            {"kind": "soft_targets", "on": "task", "temperature": self.temperature, "weight": 1.0},
            {"kind": "hidden_mse", "weight": self.hidden},
            {"kind": "hard_labels", "weight": self.labels},
        ]
        return {"stages.0.objectives": [r for r in rows if r["weight"]], **rate}

    def as_json(self, outputs: Outputs = "answers") -> dict[str, float]:
        """Those that a training of models with these outputs reads."""
        return asdict(self) if outputs == "answers" else {"rate": self.rate}


class Range(NamedTuple):
    """log: values are drawn by their logarithm."""

    low: float
    high: float
    log: bool = True


RANGES: Mapping[str, Range] = {
    "rate": Range(2e-5, 1e-3), "temperature": Range(1.0, 8.0), "hidden": Range(0.05, 20.0),
    "labels": Range(0.0, 1.0, log=False),
}  # fmt: skip


def list_searched(task: Task) -> dict[str, Range]:
    """The settings that trials of a task vary; scores have no temperature."""
    read = Settings().as_json(outputs_of(task))
    return {name: RANGES[name] for name in read if name != "temperature" or task.kind != "regression"}
