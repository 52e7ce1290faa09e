"""Masked language modelling."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.errors import UserError
from compress.objectives._common import Base, get_required, make_zero_loss, vocabulary
from compress.objectives._vocabulary import cross_entropy, logits_at

_KIND = "masked_lm"


class Objective(Base):
    """Cross entropy of the original tokens at the masked positions, mean over those positions.

    BERT's masked language modelling (Devlin et al., arXiv 1810.04805), and the `mlm` part of DistilBERT's loss
    (Sanh et al., arXiv 1910.01108).
    """

    ignores_padding = True

    def __init__(self) -> None:
        super().__init__()
        self.student_needs = Needs(mlm="masked")
        self.teacher_needs: Needs | None = None

    def count(self, batch: Batch) -> int:
        return int(self._labels(batch).shape[0])

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """Vocabulary logits (M, V) against mlm_labels (M,) → scalar."""
        labels = self._labels(batch)
        output = vocabulary(student, _KIND)
        if not labels.shape[0]:
            return make_zero_loss(output.features)
        pieces = output.weight.shape[0]
        if (largest := int(batch.on_host.values.inspect("mlm_labels").max())) >= pieces:
            raise UserError(
                f"token id {largest} is outside the student's vocabulary",
                where=f"objective {_KIND}",
                why=f"allowed: 0..{pieces - 1}",
                do="use the tokenizer that belongs to the student",
            )
        return cross_entropy(logits_at(output, batch.mlm_positions), labels, batch.real_masked)

    def _labels(self, batch: Batch) -> Tensor:
        return get_required(batch.mlm_labels, "masked positions", _KIND)
