"""The labels of the data."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.padding import IGNORED
from compress.errors import UserError
from compress.objectives import _spans
from compress.objectives._common import Base, field, get_required, is_score, is_several, widen

_KIND = "hard_labels"


class Objective(Base):
    """Supervised loss: cross entropy for classes and for tags (per token), squared error for scores, and binary cross
    entropy for multi-label rows, mean over a row's labels.

    Mean over the rows (or tokens) with a label; -100, or NaN for real numbers, marks a missing label.
    label_smoothing: fraction of the probability spread evenly over all classes (Szegedy et al., arXiv 1512.00567), or
    over both values of each label of a multi-label row; not supported for scores.
    """

    ignores_padding = True

    def __init__(self, *, label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.0) -> None:
        super().__init__()
        if not 0 <= label_smoothing < 1:
            raise UserError(
                "label_smoothing must be at least 0 and below 1",
                where=f"objective {_KIND}.label_smoothing",
                why=f"found {label_smoothing}",
            )
        self.label_smoothing = label_smoothing
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = None

    def count(self, batch: Batch) -> int:
        labels = get_required(batch.labels, "labels", _KIND)
        return int(_known(labels).sum())

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (N, C), or (T, C) of tags, against the batch's labels → scalar."""
        logits = widen(field(student, "logits", _KIND))
        labels = get_required(batch.labels, "labels", _KIND)
        if is_score(labels):
            return self._regression(logits, labels)
        if is_several(labels):
            return self._several(logits, labels)
        if _spans.is_spans(labels):
            losses = _spans.cross_entropy(logits, batch, labels, self.label_smoothing)
            return losses.sum() / _known(labels).sum().clamp(min=1)
        if logits.shape[0] != labels.shape[0]:
            raise self._rows_differ(logits, labels)
        self._check_range(logits, batch.on_host)
        total = F.cross_entropy(
            logits, labels, ignore_index=IGNORED, label_smoothing=self.label_smoothing, reduction="sum"
        )
        return total / (labels != IGNORED).sum().clamp(min=1)

    def _regression(self, logits: Tensor, labels: Tensor) -> Tensor:
        if tuple(logits.shape) != (labels.shape[0], 1):
            raise self._rows_differ(logits, labels)
        if self.label_smoothing:
            raise UserError(
                "label smoothing does not apply to regression",
                where=f"objective {_KIND}.label_smoothing",
                do="remove it, or set it to 0",
            )
        known = _known(labels)
        error = logits[:, 0] - torch.where(known, labels, 0.0)
        squares = torch.where(known, error.square(), 0.0)
        return squares.sum() / known.sum().clamp(min=1)

    def _several(self, logits: Tensor, labels: Tensor) -> Tensor:
        if logits.shape != labels.shape:
            raise self._rows_differ(logits, labels)
        known = _known(labels)
        wanted = (
            torch.where(known[:, None], labels, 0.0).to(logits.dtype) * (1 - self.label_smoothing)
            + self.label_smoothing / 2
        )
        rows = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none").mean(1)
        return torch.where(known, rows, 0.0).sum() / known.sum().clamp(min=1)

    def _check_range(self, logits: Tensor, batch: Batch) -> None:
        classes, labels = logits.shape[1], batch.values.inspect("labels")
        wrong = (labels != IGNORED) & ((labels < 0) | (labels >= classes))
        if wrong.any():
            at = int(wrong.argmax())
            row = f"row {int(batch.row_ids[at])}" if batch.rows == labels.shape[0] else f"token {at}"
            raise UserError(
                f"label {int(labels[at])} is outside the model's classes", where=row, why=f"allowed: 0..{classes - 1}"
            )

    def _rows_differ(self, logits: Tensor, labels: Tensor) -> UserError:
        return UserError(
            "the model's outputs do not match the labels",
            where=f"objective {_KIND}",
            why=f"logits are {tuple(logits.shape)}, labels {tuple(labels.shape)} of {labels.dtype}",
            do="check the task: class labels are integers; regression needs one output and float labels",
        )


def _known(labels: Tensor) -> Tensor:
    """Which rows (tokens, of tags) have a label."""
    if _spans.is_spans(labels):
        return _spans.has_answer(labels)
    if not labels.is_floating_point():
        return labels != IGNORED
    missing = torch.isnan(labels)
    return ~(missing.any(1) if labels.dim() == 2 else missing)
