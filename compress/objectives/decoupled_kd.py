"""Decoupled distillation: the target class and the other classes have separate weights."""

from __future__ import annotations

from typing import Annotated

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.padding import IGNORED
from compress.errors import UserError
from compress.objectives._common import (
    Base,
    field,
    get_required,
    make_zero_loss,
    positive,
    same_shape,
    take_others,
    teacher_of,
    widen,
)

_KIND = "decoupled_kd"


class Objective(Base):
    """T²·(alpha·KL of target versus rest + beta·KL among the other classes), mean over rows.

    Decoupled knowledge distillation (Zhao et al., arXiv 2203.08679). With two classes the second part is zero. The
    target of a row without a label is the class that the teacher finds likeliest.
    alpha: weight of the target-class part (the teacher's confidence in the correct class).
    beta: weight of the non-target part (which wrong classes the teacher finds likely); the paper uses 2 to 8.
    temperature: T, as in soft_targets.
    """

    one_class = True

    def __init__(
        self,
        *,
        alpha: Annotated[float, Field(ge=0, le=1000)] = 1.0,
        beta: Annotated[float, Field(ge=0, le=1000)] = 2.0,
        temperature: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] = 4.0,
    ) -> None:
        super().__init__()
        if alpha == 0 and beta == 0:
            raise UserError("alpha and beta are both 0", where=f"objective {_KIND}", do="set one of them above 0")
        self.alpha, self.beta = alpha, beta
        self.temperature = positive(temperature, "temperature", _KIND)
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = Needs(logits=True)

    def count(self, batch: Batch) -> int:
        labels = get_required(batch.labels, "labels", _KIND)
        if labels.dtype.is_floating_point or labels.dim() != 1 or labels.shape[0] != batch.rows:
            raise UserError("needs one class per row", where=f"objective {_KIND}", do="use soft_targets for this task")
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, C) of both, labels (B,) → scalar."""
        theirs = teacher_of(teacher, _KIND)
        ours, goal = widen(field(student, "logits", _KIND)), widen(field(theirs, "logits", _KIND, "teacher"))
        same_shape(ours, goal, "classes", _KIND)
        labels = get_required(batch.labels, "labels", _KIND)
        if not batch.rows:
            return make_zero_loss(ours)
        at = torch.where(labels == IGNORED, goal.argmax(1), labels)[:, None]
        (right, rest), (their_right, their_rest) = (_parts(x / self.temperature, at) for x in (ours, goal))
        value = self.alpha * F.kl_div(right, their_right, log_target=True, reduction="batchmean")
        if rest.shape[1] > 1:
            value = value + self.beta * F.kl_div(rest, their_rest, log_target=True, reduction="batchmean")
        return value * self.temperature**2


def _parts(z: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """(n, C) logits → log probabilities of right and wrong (n, 2), and among the wrong classes (n, C−1)."""
    others = take_others(z, at)
    both = torch.cat([z.gather(1, at), others.logsumexp(1, keepdim=True)], 1)
    return both.log_softmax(1), others.log_softmax(1)
