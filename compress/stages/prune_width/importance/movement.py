"""Movement pruning: keep what training moves away from zero (Sanh et al., arXiv 2005.07683; for whole heads and
neurons, as in nn_pruning's blocks, Lagunas et al., arXiv 2109.04838)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.stages.prune_width.learning import GateLearning, On

RAMP = (0.1, 0.7)
"""Shares of the steps between which the masks shrink, along a cubic curve."""


class Importance:
    """Score: minus the derivative of the loss with respect to a mask, summed over the steps of a fine-tuning: how much
    the contribution of a head or neuron grows. The fine-tuned model is pruned.

    The masks are 1 for the highest sums and 0 for the others, which keep learning (straight-through). The kept
    fraction shrinks to the target, per layer, or over all layers with `uneven`. For channels of the hidden states only
    the ranking is used. Sums are reported relative to the smallest.

    on: "labels", "teacher" (outputs of the unpruned model), or "both".
    steps: training steps, a few rows each.
    learning_rate: learning rate of the weights.
    """

    reads_text, in_loss, rearranges, refits = True, False, False, False

    def __init__(
        self,
        *,
        on: On = "both",
        steps: Annotated[int, Field(gt=0, le=1_000_000)] = 300,
        learning_rate: Annotated[float, Field(gt=0)] = 5e-5,
    ) -> None:
        self.on: On = on
        self.steps, self.learning_rate = steps, learning_rate

    @property
    def reads_labels(self) -> bool:
        return self.on == "labels"

    def __call__(self, study: WidthStudy) -> WidthScores:
        learning = GateLearning(study, self.on, self.learning_rate, stream=False)
        scores = learning.scores(self._moved(learning))
        study.trained = learning.model
        return WidthScores(_from_least(scores.heads), _from_least(scores.neurons))

    def hidden(self, study: WidthStudy) -> Tensor:
        return _from_least(self._moved(GateLearning(study, self.on, self.learning_rate, stream=True)))[0]

    def _moved(self, learning: GateLearning) -> list[Tensor]:
        device = learning.study.batches[0].input_ids.device
        sums = [torch.zeros(n, dtype=torch.float64, device=device) for n in learning.sizes]
        masks: list[Tensor] = []
        first, last = RAMP

        def add() -> None:
            for total, mask in zip(sums, masks, strict=True):
                assert mask.grad is not None
                total -= mask.grad.double()

        def gates(step: int) -> list[Tensor]:
            if masks:
                add()
            way = min(1.0, max(0.0, (step / self.steps - first) / (last - first)))
            masks[:] = self._masks(learning, sums, 1 - (1 - way) ** 3)
            return masks

        learning.train(self.steps, gates, lambda _, loss: loss)
        add()
        return [x.cpu() for x in sums]

    def _masks(self, learning: GateLearning, sums: list[Tensor], way: float) -> list[Tensor]:
        made = [torch.zeros(len(x), device=x.device) for x in sums]
        for units in learning.groups:
            every = torch.cat([sums[u] for u in units])
            stay = max(1, int(len(every) * (1 - way * (1 - learning.shares[units[0]])) + 0.5))
            mask = torch.zeros(len(every), device=every.device)
            mask[every.argsort(descending=True, stable=True)[:stay]] = 1
            for unit, part in zip(units, mask.split([len(sums[u]) for u in units]), strict=True):
                made[unit] = part.clone()
        return [x.requires_grad_(True) for x in made]


def _from_least(sums: Sequence[Tensor]) -> list[Tensor]:
    """Of one kind, none below 0."""
    least = min(float(x.min()) for x in sums)
    return [x - least for x in sums]
