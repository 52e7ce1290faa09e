"""Hidden states, layer by layer."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.layermaps import ModelPair
from compress.objectives._common import nothing, teacher_of
from compress.objectives._layers import Layerwise, Projection, Projections, states

_KIND = "hidden_mse"


class Objective(Layerwise):
    """Squared difference of mapped layers' hidden states after a learned projection, summed over the layer map.

    TinyBERT's hidden loss (Jiao et al., arXiv 1909.10351), the mean over real tokens and channels.
    projection: "shared" (one matrix for all layers, as TinyBERT's code), "per-layer", "none", or "auto": shared where
        the widths differ, none where they agree. It trains along and is dropped at the end.
    """

    kind = f"objective {_KIND}"

    def __init__(self, *, projection: Projection = "auto") -> None:
        super().__init__()
        self.projection: Projection = projection
        self.student_needs = Needs(hidden_states=True)
        self.teacher_needs: Needs | None = Needs(hidden_states=True)

    def bind(self, pair: ModelPair) -> None:
        super().bind(pair)
        widths = pair.student.hidden, pair.teacher.hidden
        self.maps = Projections(self.projection, *widths, pair.student.depth, f"{self.kind}.projection")

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states N x (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.tokens:
            return nothing(student.last_hidden)

        def distance(s: int, t: int) -> Tensor:
            return (self.maps(states(student, s, _KIND), s) - states(theirs, t, _KIND)).square().mean()

        return self.total(distance)
