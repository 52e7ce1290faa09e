"""Learned masks: hard-concrete gates under a Lagrangian that reaches the target, weights trained along (CoFi, Xia et
al., arXiv 2204.00408; gates of Louizos et al., arXiv 1712.01312)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from compress.contracts import WidthScores, WidthStudy
from compress.encoder.modules.hard_concrete import OPEN, chance, compute_final_gate, draw
from compress.stages.prune_width.learning import GateLearning, On

RAMP = 0.5
"""Of the steps, in which the target moves from all to what is to be left."""
PENALTY, ASCENT = 10.0, 0.01
"""ρ, and how much of ρ(s − t) is added to λ at each step."""


class Importance:
    """Score: probability that a gate is open after training gates and weights jointly; the trained model is pruned.

    The loss with random gates, plus λ(s − t) + ρ/2 (s − t)² for the expected fraction s of open gates and its target t,
    per layer, or over all layers with `uneven`. λ follows s − t, so that s ends at t; t falls linearly over the first
    half. (CoFi learns both factors; with a fixed ρ, the method of multipliers, a few hundred steps suffice.) Heads and
    neurons have one target each; channels of the hidden states are trained separately, and only their ranking is used.

    on: "labels", "teacher" (outputs of the unpruned model), or "both".
    steps: training steps, a few rows each.
    learning_rate: learning rate of the weights.
    gate_rate: learning rate of the gates.
    """

    reads_text, in_loss, rearranges, refits = True, False, False, False

    def __init__(
        self,
        *,
        on: On = "both",
        steps: Annotated[int, Field(gt=0, le=1_000_000)] = 300,
        learning_rate: Annotated[float, Field(gt=0)] = 5e-5,
        gate_rate: Annotated[float, Field(gt=0)] = 0.1,
    ) -> None:
        self.on: On = on
        self.steps, self.learning_rate, self.gate_rate = steps, learning_rate, gate_rate

    @property
    def reads_labels(self) -> bool:
        return self.on == "labels"

    def __call__(self, study: WidthStudy) -> WidthScores:
        learning = GateLearning(study, self.on, self.learning_rate, stream=False)
        logits = self._trained(learning)
        learning.fold([compute_final_gate(x) for x in logits])
        study.trained = learning.model
        return learning.scores([chance(x) for x in logits])

    def hidden(self, study: WidthStudy) -> Tensor:
        (logits,) = self._trained(GateLearning(study, self.on, self.learning_rate, stream=True))
        return chance(logits).double().cpu()

    def _trained(self, learning: GateLearning) -> list[Tensor]:
        """The gates' logits."""
        study = learning.study
        device = study.batches[0].input_ids.device
        logits = [torch.full((n,), OPEN, device=device, requires_grad=True) for n in learning.sizes]
        pull = [torch.zeros((), device=device) for _ in learning.groups]
        rule = torch.optim.Adam(logits, lr=self.gate_rate)
        generator = torch.Generator("cpu").manual_seed(study.seed)

        def gates(step: int) -> list[Tensor]:
            if step:
                rule.step()
            rule.zero_grad()
            return [draw(x, generator) for x in logits]

        def with_pull(step: int, loss: Tensor) -> Tensor:
            way = min(1.0, (step + 1) / max(1.0, RAMP * self.steps))
            for place, units in enumerate(learning.groups):
                expected = chance(torch.cat([logits[u] for u in units])).mean()
                over = expected - (1 - way * (1 - learning.shares[units[0]]))
                loss = loss + pull[place] * over + PENALTY / 2 * over.square()
                pull[place] = pull[place] + ASCENT * PENALTY * over.detach()
            return loss

        learning.train(self.steps, gates, with_pull)
        rule.step()
        return [x.detach() for x in logits]
