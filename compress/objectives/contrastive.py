"""Contrastive loss: find the teacher's representation of a row within the batch."""

from __future__ import annotations

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.objectives._common import Base, make_zero_loss, positive, teacher_of, widen
from compress.objectives._layers import Projected, Projections, rows_of

_KIND = "contrastive"


class Objective(Base):
    """Cross entropy of finding the teacher's representation of a row among those of the whole micro-batch.

    InfoNCE with in-batch negatives, between student and teacher as in contrastive distillation (Tian et al., arXiv
    1910.10699; for BERT: Sun et al., arXiv 2009.14167). Mean over rows; a micro-batch of one row has no effect.
    temperature: divides the cosines; lower values focus on the nearest negatives.
    rows: representation of a row: the "first" token of the last layer, or the "mean" over its tokens without padding.
    """

    coupled = True
    softens = False  # its temperature divides cosines

    def __init__(
        self,
        *,
        temperature: Annotated[float, Field(gt=0, le=100, allow_inf_nan=False)] = 0.1,
        rows: Literal["first", "mean"] = "mean",
    ) -> None:
        super().__init__()
        self.temperature = positive(temperature, "temperature", _KIND)
        self.rows: Literal["first", "mean"] = rows
        self.student_needs = Needs(last_hidden=True)
        self.teacher_needs: Needs | None = Needs(last_hidden=True)

    def bind(self, pair: ModelPair) -> None:
        """Be told of the two models; makes a projection where their widths differ."""
        self.maps = Projections("auto", pair.student.hidden, pair.teacher.hidden, 1, f"objective {_KIND}")

    def list_projected(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Projected:
        """What is compared: the rows' representations."""
        ours, theirs = (rows_of(widen(output.last_hidden), batch, self.rows) for output in (student, teacher))
        return ((0, ours, theirs),)

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """last_hidden (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.rows:
            return make_zero_loss(student.last_hidden)
        ((_, ours, goal),) = self.list_projected(student, theirs, batch)
        ours, goal = F.normalize(self.maps(ours, 0), dim=1), F.normalize(goal, dim=1)
        own = torch.arange(batch.rows, device=ours.device)
        return F.cross_entropy(ours @ goal.T / self.temperature, own)
