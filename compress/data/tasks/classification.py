"""One text, one label."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from compress.data.examples import Examples, encode_rows, encode_texts
from compress.data.table import Rows
from compress.data.tokenizer import Tokenizer
from compress.errors import UserError


@dataclass(frozen=True)
class Answer:
    """label: the most probable one.  probabilities: label name → probability, summing to 1."""

    label: str
    probabilities: dict[str, float]

    @property
    def probability(self) -> float:
        return self.probabilities[self.label]


class Task:
    """Single-text classification."""

    kind: ClassVar[str] = "classification"
    text_roles: ClassVar[tuple[str, ...]] = ("text",)
    head: ClassVar[tuple[str, str]] = ("classification", "single_label")
    main_metric: ClassVar[str] = "accuracy"
    metrics: ClassVar[tuple[str, ...]] = ("accuracy", "f1_macro", "matthews")

    def encode(self, tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
        """Rows of a table with their labels; a row without one keeps UNLABELLED."""
        return encode_rows(tokenizer, rows, max_length=max_length)

    def encode_texts(
        self, tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
    ) -> Examples:
        """Raw texts, without labels. Raises UserError when a second text is given or missing against the task."""
        wants = "text_pair" in self.text_roles
        if wants != (pairs is not None):
            needs = "pairs of texts" if wants else "single texts"
            raise UserError(f"a model for {self.kind} answers {needs}", do="give " + needs)
        return encode_texts(tokenizer, texts, pairs, max_length=max_length)

    def decode(self, logits: np.ndarray, label_names: Sequence[str]) -> list[Answer]:
        """(N, C) logits → answers. Raises UserError when C is not the number of names or a logit is not finite."""
        if logits.ndim != 2 or logits.shape[1] != len(label_names):
            raise UserError(
                "the model and its label names do not fit",
                why=f"{logits.shape[-1]} logits a row, {len(label_names)} names",
            )
        if not np.isfinite(logits).all():
            row = int(np.flatnonzero(~np.isfinite(logits).all(1))[0])
            raise UserError("the model's output is not finite", where=f"row {row + 1}", do="its weights are damaged")
        shifted = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
        shares = shifted / shifted.sum(1, keepdims=True)
        names = list(label_names)
        return [
            Answer(names[best], dict(zip(names, row, strict=True)))
            for best, row in zip(shares.argmax(1).tolist(), shares.tolist(), strict=True)
        ]
