"""Similarity (CKA) of hidden states, invariant to rotation and scale."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.objectives._common import make_zero_loss, teacher_of
from compress.objectives._layers import Layerwise, states

_KIND = "cka"


class Objective(Layerwise):
    """1 − linear CKA of mapped layers' hidden states over the real tokens, summed over the layer map.

    CKA as in Kornblith et al., arXiv 1905.00414: ‖XᵀY‖²/(‖XᵀX‖ ‖YᵀY‖), columns centred. Hidden sizes may differ. It is
    the biased estimator, close to 1 if a micro-batch has few tokens relative to the hidden size. A loss of whole
    micro-batches: tokens of two micro-batches of one step are not compared.
    """

    kind = f"objective {_KIND}"
    coupled = True

    def __init__(self) -> None:
        super().__init__()
        self.student_needs = Needs(hidden_states=True)
        self.teacher_needs: Needs | None = Needs(hidden_states=True)

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """hidden_states N x (T, D) of both → scalar."""
        theirs = teacher_of(teacher, _KIND)
        if batch.tokens < 2:
            return make_zero_loss(student.last_hidden)
        return self.total(lambda s, t: 1 - _linear_cka(states(student, s, _KIND), states(theirs, t, _KIND)))


def _linear_cka(x: Tensor, y: Tensor) -> Tensor:
    """(n, p) and (n, q) → scalar; through the n x n Gram matrices where that is less work."""
    x, y = x - x.mean(0), y - y.mean(0)
    if x.shape[0] < min(x.shape[1], y.shape[1]):
        k, l = x @ x.T, y @ y.T  # noqa: E741 - the names of the literature
        cross, own, other = (k * l).sum(), k.norm(), l.norm()
    else:
        cross, own, other = (x.T @ y).square().sum(), (x.T @ x).norm(), (y.T @ y).norm()
    # Two equal tokens, or one, have no geometry: the floor keeps 0/0 out of the gradient.
    return cross / (own * other).clamp_min(1e-12)
