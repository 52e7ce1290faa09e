"""Replaced-token detection."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.errors import UserError
from compress.objectives._common import Base, field, widen

KIND = "replaced_token"
LABELS = "replaced"
"""The key of `Batch.extra` that holds the labels."""


class Objective(Base):
    """Binary cross entropy of the replaced-token head, mean over all tokens of the batch.

    The discriminator's loss of ELECTRA (Clark et al., arXiv 2003.10555, section 2). `batch.extra["replaced"]` (T,) is
    1 where a generator put another token in the place of the original, and 0 elsewhere: a token that the generator
    predicted correctly counts as original.
    """

    def __init__(self) -> None:
        super().__init__()
        self.student_needs = Needs(replaced=True)
        self.teacher_needs: Needs | None = None

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """Scores (T,) against labels (T,) → scalar. Raises UserError for a batch without labels."""
        labels = batch.extra.get(LABELS)
        if labels is None:
            raise UserError(
                "the batch does not say which tokens were replaced",
                where=f"objective {KIND}",
                do="use it in stage pretrain, with a generator",
            )
        scores = widen(field(student, "replaced", KIND))
        total = F.binary_cross_entropy_with_logits(scores, labels.to(scores.dtype), reduction="sum")
        return total / max(1, labels.shape[0])
