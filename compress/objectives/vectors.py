"""The teacher's text embeddings."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import Base, drop_padding, field, same_shape, teacher_of, widen

_KIND = "vectors"


class Objective(Base):
    """Distance of the student's vector of a text from the teacher's (Reimers and Gurevych, arXiv 2004.09813).

    distance: "cosine", 1 minus the cosine; "mse", the squared distance |s - t|², as published up to a constant, which
        also compares lengths.
    Mean over texts.
    """

    softens = False
    ignores_padding = True
    of_vectors: ClassVar[bool] = True

    def __init__(self, *, distance: Literal["cosine", "mse"] = "cosine") -> None:
        super().__init__()
        self.distance: Literal["cosine", "mse"] = distance
        self.student_needs = Needs(logits=True)
        self.teacher_needs: Needs | None = Needs(logits=True)

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """logits (B, D) of both, the vectors → scalar."""
        ours = widen(field(student, "logits", _KIND))
        theirs = widen(field(teacher_of(teacher, _KIND), "logits", _KIND, "teacher"))
        same_shape(ours, theirs, "widths of vectors", _KIND)
        if self.distance == "mse":
            values = (ours - theirs).square().sum(1)
        else:
            values = 1 - F.cosine_similarity(ours, theirs, dim=1)
        return drop_padding(values, batch.real_rows).sum() / max(1, batch.rows)
