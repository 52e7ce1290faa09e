"""First-order Taylor: how much the loss should move without it (Molchanov et al., arXiv 1906.10771; of heads Michel et
al., arXiv 1905.10650)."""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.stages.prune_width.importance._common import scores


class Importance:
    """Mean over rows of the size of the derivative of the row's loss by a gate (1: as it is, 0: not there).

    on: "labels", the task's loss; "teacher", KL to the teacher's answers, which has no slope while the model is the
        teacher itself: for later steps of a schedule.
    """

    reads_text, in_loss, rearranges, refits = True, True, False, False

    def __init__(self, *, on: Literal["labels", "teacher"] = "labels") -> None:
        self.on: Literal["labels", "teacher"] = on

    @property
    def reads_labels(self) -> bool:
        return self.on == "labels"

    def __call__(self, study: WidthStudy) -> WidthScores:
        return scores(study.gradients(self.on), _mean_size)

    def hidden(self, study: WidthStudy) -> Tensor:
        return _mean_size(study.stream_gradients(self.on))


def _mean_size(x: Tensor) -> Tensor:
    return x.abs().mean(0)
