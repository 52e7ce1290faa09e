"""Relations among queries, among keys and among values."""

from __future__ import annotations

import math
from typing import Annotated

from pydantic import Field
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.layermaps import ModelPair
from compress.errors import UserError
from compress.objectives._common import nothing, teacher_of
from compress.objectives._layers import Layerwise, end_layer
from compress.objectives._relations import ROLES, divergence, projected

_KIND = "minilmv2"


class Objective(Layerwise):
    """KL of the Q-Q, K-K and V-V relations of one layer, each split into relation heads (arXiv 2012.15828).

    Neither widths nor heads need to agree. Mean over relation heads and real query tokens, summed over the three.
    relation_heads: into how many the concatenated heads are split; it must divide both attention widths. null: the
        most that divides both, up to 48 (the paper's number for BERT-base).
    student_layer: counted from 0, or from the end when negative; the paper takes the last.
    teacher_layer: likewise; the paper takes the last of base models, and of large ones an upper middle one (the 21st
        of 24).
    """

    kind = f"objective {_KIND}"

    def __init__(
        self,
        *,
        relation_heads: Annotated[int, Field(gt=0, le=4096)] | None = None,
        student_layer: int = -1,
        teacher_layer: int = -1,
    ) -> None:
        super().__init__()
        self.relation_heads = relation_heads
        self.layers = (student_layer, teacher_layer)
        self.student_needs = Needs(projections=True)
        self.teacher_needs: Needs | None = Needs(projections=True)

    def bind(self, pair: ModelPair) -> None:
        self.pair = pair
        s = end_layer(self.layers[0], pair.student.depth, "student_layer", _KIND)
        t = end_layer(self.layers[1], pair.teacher.depth, "teacher_layer", _KIND)
        widths = pair.student.layers[s].attention_width, pair.teacher.layers[t].attention_width
        common = math.gcd(*widths)
        if self.relation_heads is None:
            # At least 8 channels a head: narrower ones relate tokens by noise.
            fitting = [n for n in range(1, 49) if common % n == 0 and common // n >= 8]
            self.relation_heads = max(fitting, default=1)
        elif common % self.relation_heads:
            raise UserError(
                f"{self.relation_heads} relation heads do not divide both attention widths",
                where=f"{self.kind}.relation_heads",
                why=f"the student's is {widths[0]}, the teacher's {widths[1]}",
                do=f"use a divisor of {common}",
            )

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """queries, keys, values (T, H, K) of one layer of both → scalar."""
        both = (student, teacher_of(teacher, _KIND))
        if not batch.tokens:
            return nothing(student.last_hidden)
        total = student.last_hidden.new_zeros(())
        for role in ROLES:
            ours, theirs = (projected(o, role, layer, _KIND) for o, layer in zip(both, self.layers, strict=True))
            total = total + divergence(batch, (ours, ours), (theirs, theirs), self.relation_heads)
        return total
