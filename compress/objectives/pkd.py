"""Normalized first-token states, layer by layer."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.objectives._common import drop_padding, make_zero_loss, teacher_of
from compress.objectives._layers import HiddenStates, rows_of

_KIND = "pkd"


class Objective(HiddenStates):
    """Squared distance of the normalised first-token states of mapped layers, summed over the layer map.

    Patient knowledge distillation (Sun et al., arXiv 1908.09355): Σ ‖h_S/‖h_S‖ − h_T/‖h_T‖‖², mean over rows. Its layer
    maps are pkd-skip and pkd-last, which leave the last layer to the soft targets.
    projection: "none", "shared", "per-layer", or "auto": shared if the hidden sizes differ. The paper uses equal sizes.
    """

    ignores_padding = True
    kind = f"objective {_KIND}"

    def read_states(
        self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch, s: int, t: int
    ) -> tuple[Tensor, Tensor]:
        ours, theirs = super().read_states(student, teacher, batch, s, t)
        return rows_of(ours, batch, "first"), rows_of(theirs, batch, "first")

    def count(self, batch: Batch) -> int:
        return batch.rows

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states N x (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if not batch.rows:
            return make_zero_loss(student.last_hidden)

        def distance(s: int, t: int) -> Tensor:
            ours, goal = self.read_states(student, theirs, batch, s, t)
            values = (F.normalize(self.maps(ours, s), dim=1) - F.normalize(goal, dim=1)).square().sum(1)
            return drop_padding(values, batch.real_rows).mean()

        return self.total(distance)
