"""Mean squared error of hidden states, layer by layer."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.objectives._common import make_zero_loss, mean_squares, teacher_of
from compress.objectives._layers import HiddenStates

_KIND = "hidden_mse"


class Objective(HiddenStates):
    """Squared difference of the hidden states of mapped layers after a learned projection, summed over the layer map.

    TinyBERT's hidden loss (Jiao et al., arXiv 1909.10351), mean over tokens without padding and channels.
    projection: "shared" (one matrix for all layers, as in TinyBERT's code), "per-layer", "none", or "auto": shared if
        the hidden sizes differ, else none. It is trained too and dropped at the end.
    """

    ignores_padding = True
    kind = f"objective {_KIND}"

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states N x (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.tokens:
            return make_zero_loss(student.last_hidden)

        def distance(s: int, t: int) -> Tensor:
            ours, goal = self.read_states(student, theirs, batch, s, t)
            return mean_squares(self.maps(ours, s), goal, batch.real_tokens)

        return self.total(distance)
