"""Compares a teacher and a student with different tokenizers on their common spans.

Answers are compared row by row. What objectives read of single pieces, hidden states and queries, keys and values, is
the mean over the pieces of each common span (`data.alignment`); every objective then runs as it is, on spans. [CLS] is
a span of its own in both.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs, Teacher
from compress.data.batches.paired import get_teacher_batch
from compress.encoder.modules.operations import count_operations
from compress.training.module import StageModule

LAYERED = ("hidden_states", "queries", "keys", "values")


class AlignedTeacher:
    """A prepared teacher that is given the student's batch and reads its own of the same rows. Is a `Teacher`."""

    def __init__(self, teacher: Teacher) -> None:
        self.teacher = teacher

    def __call__(self, batch: Batch, needs: Needs) -> EncoderOutput:
        """batch: also holds that of the teacher (`PairedRows.add_teacher_batch`), whose tokens the output has."""
        return self.teacher(get_teacher_batch(batch).batch, needs)

    def count_operations(self, batch: Batch, needs: Needs) -> int | None:
        """Of the products of the teacher; None where they are not known."""
        return count_operations(self.teacher, get_teacher_batch(batch).batch, needs)


class AlignedModule(StageModule):
    """A StageModule over batches of `PairedBatches`: where they have common spans, objectives see spans for tokens.

    Its teacher is an `AlignedTeacher`.
    """

    def _counts(self, batch: Batch) -> dict[str, int]:
        """Of spans, where an objective averages over tokens."""
        return super()._counts(_seen(batch.on_host))

    def prepare_outputs(
        self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch
    ) -> tuple[EncoderOutput, EncoderOutput | None, Batch]:
        """Both outputs on common spans."""
        spans = get_teacher_batch(batch).spans
        if spans is None:
            return student, teacher, batch
        count = len(spans.begins)
        theirs = None if teacher is None else on_spans(teacher, spans.theirs, count)
        return on_spans(student, spans.ours, count), theirs, spans.batch(batch)


def _seen(batch: Batch) -> Batch:
    spans = get_teacher_batch(batch).spans
    return batch if spans is None else spans.batch(batch)


def on_spans(output: EncoderOutput, numbers: Tensor, count: int) -> EncoderOutput:
    """Means over the pieces of each of `count` spans in the place of what an output says of each piece.

    numbers: (T,) the span of each piece. (T, …) → (count, …); what is said of rows stays as it is.
    """
    sizes = numbers.new_zeros(count).index_add(0, numbers, torch.ones_like(numbers))  # bincount waits for a GPU

    def mean(values: Tensor) -> Tensor:
        wide = values if values.dtype == torch.float64 else values.float()
        sums = wide.new_zeros(count, *wide.shape[1:]).index_add(0, numbers, wide)
        return sums / sizes.view(-1, *[1] * (wide.dim() - 1)).to(wide.dtype)

    changes: dict[str, object] = {"last_hidden": mean(output.last_hidden)}
    for name in LAYERED:
        layers = getattr(output, name)
        if layers is not None:
            changes[name] = tuple(mean(layer) if layer.numel() else layer for layer in layers)  # empty: nobody reads it
    return dataclasses.replace(output, **changes)
