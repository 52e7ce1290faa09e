"""One text or two, one number: how positive, how alike (STS)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from compress.data import task
from compress.data.batches.examples import Examples
from compress.data.batches.ragged import LabelArray
from compress.data.reading.columns import LABEL, RequestedColumns, holds_fractions, label_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables.label_order import Labels
from compress.data.tables.scores import NAME, read_scores
from compress.data.tables.table import Rows
from compress.data.task import Choices, Fidelity, ScoredAnswers, check_outputs
from compress.data.text import baselines
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.config.encoder import HeadKind, Problem
from compress.errors import printable
from evaluation.quality.correlation import UndefinedCorrelationError, pearson_of_draws, spearman_of_draws
from evaluation.quality.slices import Members, by_quarter

SCORES = ("score", "scores", "similarity", "similarity_score", "relatedness", "rating")
CORRELATIONS = {"spearman": spearman_of_draws, "pearson": pearson_of_draws}


@dataclass(frozen=True)
class Answer:
    """score: as the data's scores."""

    score: float

    def line(self, text: str) -> str:
        return f"{self.score:.4f}\t{printable(text, 200)}"

    def as_json(self) -> dict[str, Any]:
        return {"score": self.score}


class Task(task.Task):
    """A number for a text, or for a pair of texts."""

    kind: ClassVar[str] = "regression"
    aliases: ClassVar[tuple[str, ...]] = ("pair-regression", "text-similarity", "sentence-similarity", "sts")
    text_roles: ClassVar[tuple[str, ...]] = ("text", "text_pair")
    optional_roles: ClassVar[tuple[str, ...]] = ("text_pair",)
    usual_labels: ClassVar[tuple[str, ...]] = (*SCORES, *LABEL)
    head: ClassVar[tuple[HeadKind, Problem]] = ("classification", "regression")
    metrics: ClassVar[tuple[str, ...]] = ("spearman", "pearson")

    def claims(self, frame: Frame, asked: RequestedColumns) -> int:
        """The label column holds fractions, or there is none but a column of scores."""
        name = asked.label or label_of(frame, LABEL)
        if name is None:
            return 3 if label_of(frame, SCORES) is not None else 0
        return 3 if name in frame.columns and holds_fractions(frame.columns[name]) else 0

    def read_labels(self, columns: Mapping[str, Column], where: str, choices: Choices) -> Labels:
        """(N,) float32 scores."""
        return read_scores(columns, where, names=choices.names, expected=choices.expected)

    def make_missing_labels(
        self, columns: Mapping[str, pa.ChunkedArray], rows: int, names: Sequence[str]
    ) -> LabelArray:
        """(N,) of NaN."""
        return np.full(rows, np.nan, dtype=np.float32)

    def find_unlabelled(self, labels: LabelArray) -> np.ndarray:
        """Rows whose score is NaN."""
        assert isinstance(labels, np.ndarray)
        return np.isnan(labels)

    def first_guess(self, labels: LabelArray) -> np.ndarray | None:
        """The mean score; None where no row has one."""
        assert isinstance(labels, np.ndarray)
        known = labels[~np.isnan(labels)]
        return known.mean(keepdims=True) if len(known) else None

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw texts or pairs, without scores."""
        made = super().encode_texts(tokenizer, texts, pairs, max_length=max_length)
        return dataclasses.replace(made, labels=np.full(len(made), np.nan, dtype=np.float32))

    def decode(
        self,
        logits: np.ndarray,
        label_names: Sequence[str],
        examples: Examples,
        texts: Sequence[str],
        pairs: Sequence[str] | None = None,
    ) -> Sequence[Answer]:
        """(N, 1) outputs → the score of each text."""
        check_outputs(logits, 1, NAME)
        return [Answer(float(score)) for score in logits[:, 0]]

    def score(self, logits: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows) -> ScoredAnswers:
        """(N, 1) outputs beside the scores. A correlation with a side that does not vary is undefined."""
        check_outputs(logits, 1, NAME)
        return self._score(logits[:, 0], rows)

    def _score(self, answers: np.ndarray, rows: Rows) -> ScoredAnswers:
        """(N,) numbers beside the scores."""
        assert isinstance(rows.labels, np.ndarray)
        metrics, undefined = {}, {}
        for name, of_draws in CORRELATIONS.items():
            try:
                metrics[name] = of_draws(rows.labels, answers)
            except UndefinedCorrelationError as error:
                undefined[name] = str(error)
        return ScoredAnswers(len(answers), metrics, undefined=undefined, chance=dict.fromkeys(metrics, 0.0))

    def answer_by_baseline(
        self, train: Rows, rows: Rows, label_names: Sequence[str]
    ) -> tuple[str, ScoredAnswers] | None:
        """A regression over words, of pairs over those that both texts have."""
        assert isinstance(train.labels, np.ndarray)
        found = baselines.regress(train.texts, train.pairs, train.labels, rows.texts, rows.pairs)
        return None if found is None else (found[0], self._score(found[1], rows))

    def compare(
        self, ours: np.ndarray, theirs: np.ndarray, label_names: Sequence[str], examples: Examples, rows: Rows
    ) -> Fidelity:
        """The correlation of the two models' scores, and their mean squared difference."""
        apart = {"mean_squared_difference": float(np.square(np.subtract(ours, theirs, dtype=np.float64)[:, 0]).mean())}
        try:
            return Fidelity(len(ours), {"correlation": pearson_of_draws(theirs[:, 0], ours[:, 0])}, apart)
        except UndefinedCorrelationError:
            return Fidelity(len(ours), {}, apart)

    def groups(self, rows: Rows, label_names: Sequence[str]) -> Sequence[Members]:
        """By the right score, in quarters."""
        assert isinstance(rows.labels, np.ndarray)
        return by_quarter("score", rows.labels, digits=2)
