"""Relations among queries, among keys and among values."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import Batch
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.objectives._relations import ROLES, OneLayer, Projected, divergence

MOST_HEADS = 48  # the paper's number for BERT-base
LEAST_WIDTH = 8  # channels of a relation head, where the number of heads is ours to choose


class Objective(OneLayer):
    """KL of the Q-Q, K-K and V-V relations of one layer, each split into relation heads (arXiv 2012.15828).

    Neither widths nor heads need to agree. Mean over relation heads and real query tokens, summed over the three.
    relation_heads: into how many the concatenated heads are split; it must divide both attention widths. null: the
        most that divides both, up to 48 (the paper's number for BERT-base) and with 8 channels or more in each.
    student_layer: counted from 0, or from the end when negative; the paper takes the last.
    teacher_layer: likewise; the paper takes the last of base models, and of large ones an upper middle one (the 21st
        of 24).
    """

    kind = "minilmv2"

    def __init__(
        self,
        *,
        relation_heads: Annotated[int, Field(gt=0, le=4096)] | None = None,
        student_layer: int = -1,
        teacher_layer: int = -1,
    ) -> None:
        super().__init__(student_layer, teacher_layer)
        self.relation_heads = relation_heads

    def fit(self, pair: ModelPair, student: int, teacher: int) -> None:
        widths = pair.student.layers[student].attention_width, pair.teacher.layers[teacher].attention_width
        common = math.gcd(*widths)
        if self.relation_heads is None:
            fitting = [n for n in range(1, MOST_HEADS + 1) if common % n == 0 and common // n >= LEAST_WIDTH]
            self.relation_heads = max(fitting, default=1)
        elif common % self.relation_heads:
            raise UserError(
                f"{self.relation_heads} relation heads do not divide both attention widths",
                where=f"objective {self.kind}.relation_heads",
                why=f"the student's is {widths[0]}, the teacher's {widths[1]}",
                do=f"use a divisor of {common}",
            )

    def compare(self, batch: Batch, ours: Projected, theirs: Projected) -> Tensor:
        parts = [divergence(batch, (ours[r], ours[r]), (theirs[r], theirs[r]), self.relation_heads) for r in ROLES]
        return torch.stack(parts).sum()
