"""Similarity of the rows of a batch, as the teacher represents them."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import make_zero_loss, teacher_of
from compress.objectives._layers import Layerwise, rows_of, states

_KIND = "similarity"


class Objective(Layerwise):
    """Squared difference of the rows' Gram matrices, each row normalised (Tung and Mori, arXiv 1907.09682).

    G = normalise(R Rᵀ) of the rows' representations R (B, D); ‖G_S − G_T‖² / B², summed over the layer map. Hidden
    sizes may differ. A loss of whole micro-batches: rows of two micro-batches of one step are not compared.
    rows: representation of a row: the "first" token, or the "mean" over its tokens without padding.
    """

    kind = f"objective {_KIND}"
    coupled = True

    def __init__(self, *, rows: Literal["first", "mean"] = "mean") -> None:
        super().__init__()
        self.rows: Literal["first", "mean"] = rows
        self.student_needs = Needs(hidden_states=True)
        self.teacher_needs: Needs | None = Needs(hidden_states=True)

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states N x (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.rows:
            return make_zero_loss(student.last_hidden)

        def distance(s: int, t: int) -> Tensor:
            ours, goal = (rows_of(x, batch, self.rows) for x in (states(student, s, _KIND), states(theirs, t, _KIND)))
            return (
                F.normalize(ours @ ours.T, dim=1) - F.normalize(goal @ goal.T, dim=1)
            ).square().sum() / batch.rows**2

        return self.total(distance)
