"""One text, one label."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.batches.examples import Examples
from compress.data.batches.ragged import LabelArray
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_order import Labels
from compress.data.tables.labels import read_labels
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.task import Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.text import baselines
from compress.data.text.chunks import encode_chunks, find_texts, pool
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError, printable
from evaluation.quality.agreement import divergence, softmax
from evaluation.quality.calibration import calibration_error
from evaluation.quality.chance import score_constant_label
from evaluation.quality.churn import Group, churn, confidence_bands, quarters
from evaluation.quality.draws import of_mean, of_tables
from evaluation.quality.metrics import table_metrics
from evaluation.quality.slices import Members, by_value


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
    """Single-text classification.

    long_text: "cut", or "chunk": a text that is too long is read in several chunks (`data.chunks`), which share
    `stride` tokens and whose logits are pooled.
    temperature: divides the logits before the probabilities are told, as `compress calibrate` found it.
    """

    kind: ClassVar[str] = "classification"
    settings: ClassVar[tuple[str, ...]] = ("long_text", "stride", "pooling", "temperature")
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1_macro", "matthews", "calibration_error")

    def __init__(
        self, *, long_text: str = "cut", stride: int | None = None, pooling: str = "mean", temperature: float = 1.0
    ) -> None:
        if not (isinstance(temperature, int | float) and 0 < temperature < float("inf")):
            raise UserError(
                "the temperature must be a positive number",
                where="task_settings.temperature",
                why=f"found {temperature!r}",
            )
        self.temperature = float(temperature)
        self.chunked, self.stride, self.pooling = long_text == "chunk", stride, pooling
        if self.chunked and "text_pair" in self.text_roles:
            raise UserError(
                "chunking is not supported for pairs of texts",
                where="data.long_text",
                do="use cut, and a larger max_length",
            )

    def settings_of(self, train: Rows | None, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        """What was asked for. Raises UserError for a stride or pooling of texts that are cut."""
        unread = next((name for name in ("stride", "pooling") if name in asked), None)
        if unread is not None and not self.chunked:
            raise UserError(
                f"{unread} only applies to chunks, but long texts are truncated",
                where=f"data.{unread}",
                do=f"set data.long_text: chunk, or remove {unread}",
            )
        return dict(asked)

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Rows of a table with their labels, in chunks where that was asked for."""
        if not self.chunked:
            return super().encode(tokenizer, rows, max_length=max_length)
        assert isinstance(rows.labels, np.ndarray)
        texts = (texts for texts, _ in rows.slices())
        return encode_chunks(tokenizer, texts, rows.labels, rows.numbers, max_length=max_length, stride=self.stride)

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw texts, without labels."""
        if not self.chunked:
            return super().encode_texts(tokenizer, texts, pairs, max_length=max_length)
        self.check_texts(pairs)
        numbers = np.arange(1, len(texts) + 1, dtype=np.int64)
        labels = np.full(len(texts), UNLABELLED, dtype=np.int64)
        return encode_chunks(tokenizer, [list(texts)], labels, numbers, max_length=max_length, stride=self.stride)

    def find_rows(self, examples: Examples) -> np.ndarray:
        """(W,) the row of each example, counted from 0: several are of one where texts are read in chunks."""
        return find_texts(examples) if self.chunked else np.arange(len(examples))

    def pool_chunks(self, logits: np.ndarray, examples: Examples) -> np.ndarray:
        """(N, C) logits of rows, from those of all chunks where texts are read in chunks."""
        return pool(logits, examples, self.pooling) if self.chunked else logits

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """What every table can be, when nothing else is claimed."""
        return 1

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N,) int64 class numbers."""
        return read_labels(columns, where, names=choices.names, expected=choices.expected)

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """(N,) of UNLABELLED."""
        return np.full(rows, UNLABELLED, dtype=np.int64)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
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
        shares, names = softmax(self.pool_chunks(logits, examples) / self.temperature), list(label_names)
        return [
            Answer(names[best], dict(zip(names, row, strict=True)))
            for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
        ]

    def list_metrics(self, names: Sequence[str]) -> tuple[str, ...]:
        """With two labels also F1 of the second."""
        return (*self.metrics, "f1_binary") if len(names) == 2 else self.metrics

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(N, C) logits, or those of all chunks, beside the class numbers."""
        check_outputs(logits, len(label_names))
        return self._score(self.pool_chunks(logits, examples), label_names, rows)

    def _score(self, logits: np.ndarray, label_names: Sequence[str], rows: Rows) -> ScoredAnswers:
        """(N, C) logits of rows."""
        assert isinstance(rows.labels, np.ndarray)
        gold, predicted, classes = rows.labels, logits.argmax(-1), logits.shape[1]
        scores, right = table_metrics(classes), predicted == gold
        names = self.list_metrics(label_names)
        metrics = of_tables(gold, predicted, classes, {name: scores[name] for name in names if name in scores})
        metrics["calibration_error"] = calibration_error(logits / self.temperature, gold)
        chance = score_constant_label(gold, classes)
        metrics |= {names[0]: of_mean(right)}
        floor = {"majority_baseline": chance["accuracy"]}
        return ScoredAnswers(len(gold), metrics, floor, right, chance=chance)

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """A classifier over words."""
        assert isinstance(train.labels, np.ndarray)
        texts, asked = (baselines.join_pairs(side.texts, side.pairs) for side in (train, rows))
        name, scores = baselines.classify(texts, train.labels, asked, len(label_names))
        return name, self._score(scores, label_names, rows)

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The share of rows with the same label, and the mean KL divergence from theirs to ours, in nats."""
        ours, theirs = (self.pool_chunks(side, examples) for side in (ours, theirs))
        same = of_mean(ours.argmax(-1) == theirs.argmax(-1))
        return Fidelity(len(ours), {"agreement": same, "kl": of_mean(divergence(ours, theirs))})

    def churn(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Sequence[Group]:
        """Rows that two models answer otherwise, by length, right label, and how sure the second one was."""
        assert isinstance(rows.labels, np.ndarray)
        ours, theirs = (self.pool_chunks(side, examples) for side in (ours, theirs))
        pairs = rows.pairs or [""] * len(rows)
        groups = {
            "length": quarters([len(a) + len(b) for a, b in zip(rows.texts, pairs, strict=True)]),
            "label": [label_names[i] for i in rows.labels],
            "teacher's confidence": confidence_bands(softmax(theirs).max(-1)),
        }
        return churn(ours.argmax(-1), theirs.argmax(-1), rows.labels, groups)

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """By the right label: accuracy there is that label's recall."""
        assert isinstance(rows.labels, np.ndarray)
        return by_value("label", [label_names[i] for i in rows.labels])
