"""Query-query, key-key and value-value relations of one layer."""

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

    Hidden sizes and numbers of heads may differ. Mean over relation heads and query tokens without padding,
    summed over the three.
    relation_heads: number of relation heads into which the concatenated heads are split; must divide both attention
        widths. Default: the largest number that divides both, up to 48 (the paper's number for BERT-base), with at
        least 8 channels each.
    student_layer: counted from 0, or from the end if negative; the paper uses the last.
    teacher_layer: likewise; the paper uses the last layer of base models and an upper middle layer of large models (the
        21st of 24).
    """

    ignores_padding = True
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
