"""One text, one label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.columns import Asked
from compress.data.examples import Examples
from compress.data.frame import Column, Frame
from compress.data.label_order import Labels
from compress.data.labels import read_labels
from compress.data.ragged import LabelArray
from compress.data.table import UNLABELLED, Rows
from compress.data.task import Choices, Fidelity, Scored, check_outputs
from compress.errors import printable
from evaluation.quality.agreement import divergence, softmax
from evaluation.quality.draws import of_mean, of_tables
from evaluation.quality.metrics import table_metrics


@dataclass(frozen=True)
class Answer:
    """label: the most probable one.  probabilities: label name → probability, summing to 1."""

    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        return self.probabilities[self.label]

    def line(self, text: str) -> str:
        return f"{printable(self.label)}\t{self.probability:.4f}\t{printable(text, 200)}"

    def as_json(self) -> dict[str, Any]:
        return {"label": self.label, "probabilities": self.probabilities}


class Task(task.Task):
    """Single-text classification."""

    kind: ClassVar[str] = "classification"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1_macro", "matthews")

    def claims(self, frame: Frame, asked: Asked) -> int:
        """What every table can be, when nothing else is claimed."""
        return 1

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N,) int64 class numbers."""
        return read_labels(columns, where, names=choices.names, expected=choices.expected)

    def unlabelled(self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]) -> LabelArray:
        """(N,) of UNLABELLED."""
        return np.full(rows, UNLABELLED, dtype=np.int64)

    def without_label(self, labels: LabelArray) -> np.ndarray:
        """Rows that are UNLABELLED."""
        assert isinstance(labels, np.ndarray)
        return labels == UNLABELLED

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(N, C) logits → the most probable label of each text."""
        check_outputs(logits, len(label_names))
        shares, names = softmax(logits), list(label_names)
        return [
            Answer(names[best], dict(zip(names, row, strict=True)))
            for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
        ]

    def metrics_of(self, names: Sequence[str]) -> tuple[str, ...]:
        """With two labels also F1 of the second."""
        return (*self.metrics, "f1_binary") if len(names) == 2 else self.metrics

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> Scored:
        """(N, C) logits beside the class numbers."""
        gold, predicted, classes = examples.labels, logits.argmax(-1), logits.shape[1]
        scores, right = table_metrics(classes), predicted == gold
        names = self.metrics_of(label_names)
        metrics = of_tables(gold, predicted, classes, {name: scores[name] for name in names})
        majority = float(np.bincount(gold, minlength=classes).max() / len(gold))
        return Scored(len(gold), metrics | {names[0]: of_mean(right)}, {"majority_baseline": majority}, right)

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The share of rows with the same label, and the mean KL divergence from theirs to ours, in nats."""
        same = of_mean(ours.argmax(-1) == theirs.argmax(-1))
        return Fidelity(len(ours), {"agreement": same}, {"kl": float(divergence(ours, theirs).mean())})
