"""Fisher information of masks (Kwon et al., "A Fast Post-Training Pruning Framework for Transformers", arXiv
2204.09656, without its rearrangement and reconstruction)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.stages.prune_width.importance._common import compute_joint_losses, scores


class Importance:
    """Score: half the mean square over rows of the derivative of the loss with respect to a gate, a second-order
    estimate of the rise of the loss. Layers are weighed by the rise when all their removed units are gone.

    on: "labels", or "answers" drawn from the model's own probabilities, which needs no labels.
    """

    reads_text, in_loss, rearranges, refits = True, True, False, False

    def __init__(self, *, on: Literal["labels", "answers"] = "labels") -> None:
        self.on: Literal["labels", "answers"] = on

    @property
    def reads_labels(self) -> bool:
        return self.on == "labels"

    def __call__(self, study: WidthStudy) -> WidthScores:
        gradients = study.gradients(self.on)
        found = scores(gradients, _information)
        single = (*found.heads, *found.neurons)
        lost = [compute_joint_losses(g, x) for g, x in zip(gradients.all, single, strict=True)]
        return WidthScores(found.heads, found.neurons, lost)

    def hidden(self, study: WidthStudy) -> Tensor:
        return _information(study.stream_gradients(self.on))


def _information(x: Tensor) -> Tensor:
    return x.square().mean(0) / 2
