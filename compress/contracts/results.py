"""What stages and measurements leave, and who is told of them while they run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class StageResult:
    """What a finished stage leaves: the folder of its model, and what is worth telling."""

    folder: Path
    steps: int
    seconds: float
    best: Mapping[str, float] = field(default_factory=dict)
    start: Mapping[str, float] = field(default_factory=dict)
    """What validation gave before the first step, where it was asked."""
    source: Path | None = None
    """The folder of the earlier run that it was taken from, where it was."""
    resumed: bool = False
    """Whether it was there when this run went on."""


CONTROL = "control"
"""The role of a control: the student's start, trained on hard labels alone."""
CONTROL_FROM_TEACHER = f"{CONTROL}-from-teacher"
"""The role of the control that starts from layers of the fine-tuned teacher, where the student starts elsewhere."""
BASELINE = "baseline/"
"""Begins the name of a figure of the main metric that needs no encoder: one of BASELINES."""
BASELINES = {
    "tfidf_logistic_regression": "TF-IDF + logistic regression",
    "naive_bayes": "naive Bayes over words",
    "tfidf_ridge": "TF-IDF + ridge regression",
    "commonest_tag": "most common tag of each word",
    "nearest_sentence": "sentence nearest to the question",
    "bm25": "BM25",
}
"""Baseline → what people call it."""
METRIC_NAMES = {
    "accuracy": "accuracy",
    "entity_f1": "entity F1",
    "exact_match": "exact match",
    "f1": "F1",
    "f1_micro": "micro F1",
    "f1_macro": "macro F1",
    "f1_binary": "F1 of the positive label",
    "matthews": "Matthews",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "ndcg_at_10": "nDCG@10",
    "mrr_at_10": "MRR@10",
    "recall_at_1": "recall@1",
    "recall_at_10": "recall@10",
    "recall_at_100": "recall@100",
    "cosine": "cosine to the parent",
    "hidden_cosine": "cosine of hidden states with the teacher's",
    "mlm_loss": "masked-LM loss",
    "neighbour_overlap_10": "10 nearest neighbours kept",
    "calibration_error": "calibration error",
    "calibration_error_scaled": "  after temperature scaling",
}
"""Metric → what people call it."""
RANKINGS = ("ndcg_at_10", "mrr_at_10")
"""Metrics of a query's documents in order."""
FAKE = "fake_quantized/"
"""Begins the name of what a model answers whose integers are computed in floats: no figure of a deployed file."""


def name_metric(metric: str) -> str:
    """What people call a metric; of one that is not in the list, its own name in words."""
    return METRIC_NAMES.get(metric, metric.replace("_", " "))


@dataclass(frozen=True)
class Measurement:
    """One model, measured. values: flat names as logged to MLflow (`quality/accuracy`, `speed/latency_p50_ms` ...).

    context: device, threads, runtime, precision, batch shape, data set and digest, package versions: without these
    a figure must not be compared.
    """

    values: Mapping[str, float]
    context: Mapping[str, str]
    predictions: Path | None = None


class RunLog(Protocol):
    """One tracked run as the pipeline sees it: every call appends to a local journal and returns at once."""

    def params(self, values: Mapping[str, Any]) -> None: ...

    def tags(self, values: Mapping[str, str]) -> None: ...

    def metrics(self, values: Mapping[str, float], step: int | None = None) -> None: ...

    def artifact(self, path: Path, folder: str = "") -> None: ...

    def note(self, markdown: str) -> None: ...


class Progress(Protocol):
    """Told about long work. `update` is cheap enough to call every step."""

    def update(self, done: int, **figures: float | str) -> None: ...


class Watch(Protocol):
    """(label, how many, their unit) → a context that is told of progress."""

    def __call__(self, label: str, total: int | None, unit: str = "steps", /) -> AbstractContextManager[Progress]: ...


class _Unwatched:
    def update(self, done: int, **figures: float | str) -> None:
        """Nobody looks on."""


def unwatched(label: str, total: int | None, unit: str = "steps", /) -> AbstractContextManager[Progress]:
    """A `Watch` that shows nothing."""
    return nullcontext(_Unwatched())
