"""Next-sentence or sentence-order prediction."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.contracts.padding import IGNORED
from compress.objectives._common import Base, field, get_required, widen

_KIND = "sentence_pair"


class Objective(Base):
    """Cross entropy of the pair head, mean over the rows that are pairs (label ≥ 0).

    Next-sentence prediction of BERT (arXiv 1810.04805) or sentence order of ALBERT (arXiv 1909.11942): the data's
    pair labels say which. Label 0 is "is next", or "in order".
    """

    ignores_padding = True

    def __init__(self) -> None:
        super().__init__()
        self.student_needs = Needs(pair_logits=True)
        self.teacher_needs: Needs | None = None

    def count(self, batch: Batch) -> int:
        return int((get_required(batch.pair_labels, "sentence-pair labels", _KIND) != IGNORED).sum())

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """pair_logits (B, 2) against pair_labels (B,) → scalar."""
        logits = widen(field(student, "pair_logits", _KIND))
        labels = get_required(batch.pair_labels, "sentence-pair labels", _KIND)
        total = F.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
        return total / (labels != IGNORED).sum().clamp(min=1)
