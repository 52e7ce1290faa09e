"""What several objectives share: missing fields told by name, shapes that must agree, the width of the arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.contracts import EncoderOutput, VocabularyOutput
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError


class Base(nn.Module):
    """An objective whose rows do not depend on each other, and which nothing of the two models' shapes changes."""

    coupled: ClassVar[bool] = False
    """Whether the value of a row depends on the other rows of its batch."""
    softens: ClassVar[bool] = True
    by_query: ClassVar[bool] = False
    """Whether it compares the documents of a query with each other, which must be in one micro-batch then."""
    one_class: ClassVar[bool] = False
    """Whether every row needs exactly one class."""
    ignores_padding: ClassVar[bool] = False
    """Whether what a batch holds as padding (`Batch.real_rows`) adds nothing to the sum that it divides by `count`, and
    has no gradient."""

    def bind(self, pair: ModelPair) -> None:
        """Nothing depends on the models."""


def field(output: EncoderOutput, name: str, kind: str, whose: str = "student") -> Tensor:
    """A tensor of `output` that this objective asked for in its needs."""
    value = getattr(output, name)
    if value is None:
        raise UserError(f"the {whose}'s output has no {name}", where=f"objective {kind}")
    return value


def vocabulary(output: EncoderOutput, kind: str, whose: str = "student") -> VocabularyOutput:
    """The vocabulary head's output."""
    if output.vocabulary is None:
        raise UserError(f"the {whose}'s output has no vocabulary logits", where=f"objective {kind}")
    return output.vocabulary


def get_required(value: Tensor | None, name: str, kind: str) -> Tensor:
    """A field of the batch without which this objective has nothing to compare with."""
    if value is None:
        raise UserError(f"the batch has no {name}", where=f"objective {kind}", do="use data with a label column")
    return value


def take_others(values: Tensor, at: Tensor) -> Tensor:
    """(N, C) values, (N, 1) a column of each row → (N, C−1) without it; by index, since a mask would be waited for."""
    columns = torch.arange(values.shape[1] - 1, device=values.device)
    return values.gather(1, columns + (columns >= at))


def is_score(labels: Tensor) -> bool:
    """(B,) real numbers: a regression."""
    return labels.is_floating_point() and labels.dim() == 1


def is_several(labels: Tensor) -> bool:
    """(B, C) of 0 and 1: any number of labels a row."""
    return labels.is_floating_point() and labels.dim() == 2


def teacher_of(teacher: EncoderOutput | None, kind: str) -> EncoderOutput:
    """The teacher's output, or a UserError when nobody brought a teacher."""
    if teacher is None:
        raise UserError("needs a teacher, but none is given", where=f"objective {kind}", do="add --teacher")
    return teacher


def same_shape(student: Tensor, teacher: Tensor, what: str, kind: str) -> None:
    """Both (N, C): a teacher with one class against a student with three would broadcast and train on nonsense."""
    if student.shape != teacher.shape:
        raise UserError(
            f"teacher and student have different {what}",
            where=f"objective {kind}",
            why=f"the teacher's shape is {tuple(teacher.shape)}, the student's {tuple(student.shape)}",
            do=f"use models with the same {what}",
        )


def positive(value: float, name: str, kind: str) -> float:
    """`value` when it is a finite number above 0."""
    if not (math.isfinite(value) and value > 0):
        raise UserError(f"{name} must be a number above 0", where=f"objective {kind}.{name}", why=f"found {value}")
    return float(value)


def widen(values: Tensor) -> Tensor:
    """fp32, or fp64 as it comes: losses are never summed in less."""
    return values if values.dtype == torch.float64 else values.float()


def drop_padding(values: Tensor, real: Tensor | None) -> Tensor:
    """values (N, ..) of tokens or rows, 0 on padding, which then has no gradient.

    real: (N,) bool, of the batch: `real_tokens` or `real_rows`; None: there is no padding.
    """
    return values if real is None else values.masked_fill(~real.view(-1, *[1] * (values.dim() - 1)), 0.0)


def mean_squares(ours: Tensor, theirs: Tensor, real: Tensor | None) -> Tensor:
    """Mean squared difference of (N, C), all N rows counted; real: as in `drop_padding`."""
    return F.mse_loss(drop_padding(ours, real), drop_padding(theirs, real))


def add(scalars: Sequence[Tensor]) -> Tensor:
    """Their sum."""
    return scalars[0] if len(scalars) == 1 else torch.stack(list(scalars)).sum()


def make_zero_loss(values: Tensor) -> Tensor:
    """A zero that hangs on `values`: the mean over no terms, without the NaN of dividing by zero."""
    return widen(values).sum() * 0.0
