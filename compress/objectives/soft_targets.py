"""The teacher's softened probabilities."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.errors import UserError
from compress.objectives import _spans
from compress.objectives._common import (
    Base,
    drop_padding,
    field,
    get_required,
    is_several,
    make_zero_loss,
    positive,
    same_shape,
    teacher_of,
    vocabulary,
    widen,
)
from compress.objectives._divergences import Kind, compute_divergence, standardize
from compress.objectives._vocabulary import divergence as vocabulary_divergence
from compress.objectives._vocabulary import logits_at

_KIND = "soft_targets"


class Objective(Base):
    """T²·divergence of probabilities softened by a temperature T (Hinton et al., arXiv 1503.02531).

    on: "task" reads the task head, "vocabulary" the masked-LM head (the `ce` part of DistilBERT, arXiv 1910.01108).
    temperature: T; 1 leaves the probabilities unchanged, higher values give more weight to unlikely classes.
    positions: with on: vocabulary, "all" tokens without padding, or the "masked" ones (DistilBERT's
        `restrict_ce_to_mask`).
    divergence: with on: task, "forward", KL(teacher ‖ student), as published; "reverse", which tolerates a student that
        ignores what the teacher finds unlikely; "symmetric", the mean of both; "jensen_shannon".
    per_example: use a separate temperature for each row, T times the standard deviation of its logits, for student and
        teacher each (logit standardisation, Sun et al., arXiv 2403.01427). Needs three classes or more.
    Mean over rows, or over the words of a task that tags them. For multi-label rows, each label has two
    probabilities: mean over a row's labels. A score has no probabilities: squared difference instead.
    """

    ignores_padding = True

    def __init__(
        self,
        *,
        on: Literal["task", "vocabulary"] = "task",
        temperature: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 2.0,
        positions: Literal["all", "masked"] = "all",
        divergence: Kind = "forward",
        per_example: bool = False,
    ) -> None:
        super().__init__()
        if on == "vocabulary" and (divergence != "forward" or per_example):
            raise UserError(
                f"{'per_example' if per_example else 'divergence'} only applies to task logits",
                where=f"objective {_KIND}",
                do="use on: task, or remove it",
            )
        if positions == "masked" and on != "vocabulary":
            raise UserError(
                "only vocabulary logits can be restricted to masked positions",
                where=f"objective {_KIND}.positions",
                do="use on: vocabulary, or positions: all",
            )
        self.on, self.positions = on, positions
        self.divergence: Kind = divergence
        self.per_example = per_example
        self.temperature = positive(temperature, "temperature", _KIND)
        self.student_needs = Needs(logits=True) if on == "task" else Needs(mlm=positions)
        self.teacher_needs: Needs | None = self.student_needs
        if on == "vocabulary":
            self.teacher_needs = Needs(mlm=positions, temperatures=frozenset({self.temperature}))

    def count(self, batch: Batch) -> int:
        if self.on == "vocabulary":
            return batch.tokens if self.positions == "all" else int(self._masked(batch).shape[0])
        return batch.rows if batch.answered is None else int(batch.answered.sum())

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """Logits (N, C), or (T, C) of tags, of both, or the vocabulary's (T or M, V) → scalar."""
        teacher = teacher_of(teacher, _KIND)
        return self._task(student, teacher, batch) if self.on == "task" else self._words(student, teacher, batch)

    def _task(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Tensor:
        ours, theirs = widen(field(student, "logits", _KIND)), widen(field(teacher, "logits", _KIND, "teacher"))
        same_shape(ours, theirs, "classes", _KIND)
        if _spans.is_spans(batch.labels):
            ours, theirs = (_spans.pad_scores(x, batch) for x in (ours, theirs))
            real = _spans.find_places(batch) if self.per_example else None
            values = self._divergence(ours, theirs, real).mean(1)
            return drop_padding(values, batch.real_rows).sum() / max(1, batch.rows)
        if ours.shape[0] != (batch.rows if batch.answered is None else batch.tokens):
            raise UserError(
                "the models' logits are per token, but the batch does not mark the labelled tokens",
                where=f"objective {_KIND}",
            )
        if batch.labels is not None and is_several(batch.labels):
            values = self._divergence(_both(ours), _both(theirs)).mean(1)
        elif ours.shape[1] == 1:
            values = (ours - theirs).square()[:, 0]
        else:
            values = self._divergence(ours, theirs)
        if batch.answered is None:
            return drop_padding(values, batch.real_rows).sum() / max(1, batch.rows)
        return (values * batch.answered).sum() / batch.answered.sum().clamp(min=1)

    def _divergence(self, ours: Tensor, theirs: Tensor, real: Tensor | None = None) -> Tensor:
        """Over the last axis. real: as of `standardize`."""
        if self.per_example:
            if ours.shape[-1] < 3:
                raise UserError(
                    "per_example needs at least three classes",
                    where=f"objective {_KIND}.per_example",
                    why="standardizing two logits keeps only their order",
                )
            ours, theirs = standardize(ours, real), standardize(theirs, real)
        return compute_divergence(ours, theirs, self.temperature, self.divergence)

    def _words(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Tensor:
        ours, theirs = vocabulary(student, _KIND), teacher.likeliest or vocabulary(teacher, _KIND, "teacher")
        rows = self._masked(batch) if self.positions == "masked" else None
        if self.count(batch.on_host) == 0:
            return make_zero_loss(ours.features)
        real = batch.real_tokens if rows is None else batch.real_masked
        return vocabulary_divergence(logits_at(ours, rows), theirs, rows, self.temperature, real)

    def _masked(self, batch: Batch) -> Tensor:
        return get_required(batch.mlm_positions, "masked positions", _KIND)


def _both(logits: Tensor) -> Tensor:
    """(N, C) logits of labels that apply or not → (N, C, 2) logits whose softmax is (sigmoid, 1 − sigmoid)."""
    return torch.stack([logits, torch.zeros_like(logits)], dim=-1)
