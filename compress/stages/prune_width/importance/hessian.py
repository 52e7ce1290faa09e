"""Optimal brain damage (LeCun, Denker and Solla 1990): the diagonal of a Hessian, here by gates, of the KL divergence
from the model's own answers, by Gauss and Newton as in the paper."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import WidthScores, WidthStudy


class Importance:
    """Score: half the second derivative of the KL divergence with respect to a gate, the second-order
    change of the outputs.

    The first derivative is zero, since the divergence from the current outputs is minimal there. Reads no labels.
    """

    reads_text, reads_labels, in_loss, rearranges, refits = True, False, True, False, False

    def __call__(self, study: WidthStudy) -> WidthScores:
        found = study.curvatures()
        return WidthScores([x / 2 for x in found.heads], [x / 2 for x in found.neurons])

    def hidden(self, study: WidthStudy) -> Tensor:
        return study.stream_curvatures() / 2
