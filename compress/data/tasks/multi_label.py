"""One text or two, any number of labels: topics, emotions, tags of a ticket."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.batches.examples import Examples
from compress.data.batches.ragged import LabelArray
from compress.data.reading.columns import LABEL, RequestedColumns, label_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_lists import is_list, read_label_sets
from compress.data.tables.label_order import Labels
from compress.data.tables.table import Rows
from compress.data.task import Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.text import baselines
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import printable
from evaluation.quality.agreement import bernoulli_divergence, sigmoid
from evaluation.quality.chance import score_constant_labels
from evaluation.quality.counts import f1_macro, f1_micro
from evaluation.quality.draws import of_counts, of_mean
from evaluation.quality.multilabel import exact_rows, multilabel_counts
from evaluation.quality.slices import Members

THRESHOLD = 0.5  # of the probability above which a label applies


@dataclass(frozen=True)
class Answer:
    """labels: those that apply, in the model's order.  probabilities: label name → probability, each on its own."""

    labels: tuple[str, ...]
    probabilities: dict[str, float]

    def line(self, text: str) -> str:
        names = ", ".join(printable(name) for name in self.labels) or "-"
        shares = ", ".join(f"{self.probabilities[name]:.4f}" for name in self.labels) or "-"
        return f"{names}\t{shares}\t{printable(text, 200)}"

    def as_json(self) -> dict[str, Any]:
        return {"labels": list(self.labels), "probabilities": self.probabilities}


class Task(task.Task):
    """Each label applies or not, whatever the others do."""

    kind: ClassVar[str] = "multi-label"
    aliases: ClassVar[tuple[str, ...]] = ("multi-label-classification", "multilabel")
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    optional_roles: ClassVar[tuple[str, ...]] = ("text_pair",)
    head: ClassVar[tuple[HeadKind, Problem]] = ("classification", "multi_label")
    metrics: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro", "accuracy")

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """The label column holds lists."""
        name = asked.label or label_of(frame, LABEL) or ""
        return 3 if name in frame.columns and is_list(frame.columns[name]) else 0

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N, C) float32 of 0 and 1."""
        return read_label_sets(columns, where, names=choices.names, expected=choices.expected)

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """(N, C) of NaN."""
        return np.full((rows, len(names)), np.nan, dtype=np.float32)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows that are NaN: an empty list is an answer."""
        assert isinstance(labels, np.ndarray)
        return np.asarray(np.isnan(labels).any(1))

    def first_guess(self, labels: LabelArray) -> np.ndarray | None:
        """The logit of how often each label applies, counted with one row more on either side."""
        assert isinstance(labels, np.ndarray)
        known = labels[~self.find_unlabelled(labels)]
        share = (known.sum(0) + 1) / (len(known) + 2)
        return np.log(share / (1 - share))

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(N, C) logits → the labels whose probability is above a half."""
        check_outputs(logits, len(label_names))
        rows = [dict(zip(label_names, row, strict=True)) for row in sigmoid(logits).tolist()]
        return [Answer(tuple(name for name, share in row.items() if share > THRESHOLD), row) for row in rows]

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(N, C) logits beside the labels that apply. accuracy: the share of rows with exactly the right labels."""
        check_outputs(logits, len(label_names))
        return self._score(logits, rows)

    def _score(self, logits: np.ndarray, rows: Rows) -> ScoredAnswers:
        assert isinstance(rows.labels, np.ndarray)
        gold, predicted = rows.labels > THRESHOLD, logits > 0
        counts, exact = multilabel_counts(gold, predicted), exact_rows(gold, predicted)
        metrics = {
            "f1_micro": of_counts(counts, f1_micro),
            "f1_macro": of_counts(counts, f1_macro),
            "accuracy": of_mean(exact),
        }
        return ScoredAnswers(len(logits), metrics, chance=score_constant_labels(gold))

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """A classifier over words for each label."""
        assert isinstance(train.labels, np.ndarray)
        texts, asked = (baselines.join_pairs(side.texts, side.pairs) for side in (train, rows))
        name, scores = baselines.label_sets(texts, train.labels, asked)
        return name, self._score(scores, rows)

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The share of labels on which both agree, and the KL divergence of a label from theirs to ours, in nats."""
        same = of_mean(((ours > 0) == (theirs > 0)).mean(1))
        return Fidelity(len(ours), {"agreement": same, "kl": of_mean(bernoulli_divergence(ours, theirs).mean(1))})

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """A group for each label, of the rows that it applies to."""
        assert isinstance(rows.labels, np.ndarray)
        applies = rows.labels > THRESHOLD
        return [Members("label", str(n), applies[:, i]) for i, n in enumerate(label_names) if applies[:, i].any()]
