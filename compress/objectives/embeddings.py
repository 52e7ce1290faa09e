"""Distance of the embedding outputs."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.objectives._common import Base, make_zero_loss, mean_squares, teacher_of
from compress.objectives._layers import Projected, Projection, Projections, states

_KIND = "embeddings"


class Objective(Base):
    """Squared difference of the embedding outputs after a learned projection, mean over tokens without padding and
    channels.

    TinyBERT's embedding loss (Jiao et al., arXiv 1909.10351).
    projection: "shared" or "per-layer" (one matrix), "none", or "auto": one if the hidden sizes differ.
    """

    ignores_padding = True

    def __init__(self, *, projection: Projection = "auto") -> None:
        super().__init__()
        self.projection: Projection = projection
        self.student_needs = Needs(hidden_states=frozenset({-1}))
        self.teacher_needs: Needs | None = self.student_needs

    def bind(self, pair: ModelPair) -> None:
        """Be told of the two models; makes the projection."""
        where = f"objective {_KIND}.projection"
        self.maps = Projections(self.projection, pair.student.hidden, pair.teacher.hidden, 1, where)

    def list_projected(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Projected:
        """What is compared: the embedding outputs."""
        return ((0, states(student, -1, _KIND), states(teacher, -1, _KIND)),)

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states[0] (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.tokens:
            return make_zero_loss(student.last_hidden)
        ((_, ours, goal),) = self.list_projected(student, theirs, batch)
        return mean_squares(self.maps(ours, 0), goal, batch.real_tokens)
