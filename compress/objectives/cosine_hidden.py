"""Cosine distance of the last hidden states."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cosine_embedding_loss

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.objectives._common import Base, drop_padding, make_zero_loss, teacher_of, widen
from compress.objectives._layers import Projected, Projection, Projections

_KIND = "cosine_hidden"


class Objective(Base):
    """1 − cos(student, teacher) of the last hidden state, mean over all tokens without padding.

    The `cos` part of DistilBERT's loss (Sanh et al., arXiv 1910.01108), where both models have the same width.
    projection: "shared" or "per-layer" (one matrix), "none", or "auto": one if the hidden sizes differ. It is trained
        too and dropped at the end.
    """

    ignores_padding = True

    def __init__(self, *, projection: Projection = "auto") -> None:
        super().__init__()
        self.projection: Projection = projection
        self.maps: Projections | None = None
        self.student_needs = Needs(last_hidden=True)
        self.teacher_needs: Needs | None = Needs(last_hidden=True)

    def bind(self, pair: ModelPair) -> None:
        """Be told of the two models; makes the projection. Raises UserError for none between two widths."""
        where = f"objective {_KIND}.projection"
        self.maps = Projections(self.projection, pair.student.hidden, pair.teacher.hidden, 1, where)

    def list_projected(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Projected:
        """What is compared: the last hidden states."""
        return ((0, widen(student.last_hidden), widen(teacher.last_hidden)),)

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """last_hidden (T, D) of both → scalar."""
        ((_, ours, theirs),) = self.list_projected(student, teacher_of(teacher, _KIND), batch)
        if self.maps is not None:
            ours = self.maps(ours, 0)
        if ours.shape != theirs.shape:
            raise UserError(
                "teacher and student have different widths",
                where=f"objective {_KIND}",
                why=f"the teacher's hidden states are {tuple(theirs.shape)}, the student's {tuple(ours.shape)}",
                do="use a student with the teacher's hidden size, or remove this objective",
            )
        if not batch.tokens:
            return make_zero_loss(ours)
        values = cosine_embedding_loss(ours, theirs, ours.new_ones(batch.tokens), reduction="none")
        return drop_padding(values, batch.real_tokens).mean()
