"""Optimal brain damage (LeCun, Denker and Solla 1990): the diagonal of a Hessian, here by gates, of the KL divergence
from the model's own answers, by Gauss and Newton as in the paper."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import WidthScores, WidthStudy


class Importance:
    """Half the second derivative of the KL divergence by a gate: how far the answers should move, to second order.

    The first derivative is zero, since the divergence from the answers as they are has its least value there; no label
    is read.
    """

    reads_text, reads_labels, in_loss, rearranges, refits = True, False, True, False, False

    def __call__(self, study: WidthStudy) -> WidthScores:
        found = study.curvatures()
        return WidthScores([x / 2 for x in found.heads], [x / 2 for x in found.neurons])

    def hidden(self, study: WidthStudy) -> Tensor:
        return study.stream_curvatures() / 2
