"""Learned gates: hard-concrete gates on frozen layers, trained to a target count (Louizos et al., arXiv 1712.01312)."""

from __future__ import annotations

from typing import Annotated

import torch
from pydantic import Field

from compress.contracts import LayerChoice, LayerStudy, Needs
from compress.encoder.modules.gates import freeze_weights
from compress.encoder.modules.hard_concrete import OPEN, chance, draw
from compress.stages.prune_layers.criteria._common import remove_lowest
from compress.stages.prune_layers.gates import apply_layer_gates


class Criterion:
    """Minimize the loss on the labels plus pressure · (expected open gates − layers to keep)²; the layers whose gates
    are most likely closed are removed.

    pressure: weight of the penalty for too many or too few open gates.
    steps: Adam steps on the gates alone, a few rows each.
    learning_rate: learning rate of these steps.
    """

    reads_text = True
    reads_labels = True

    def __init__(
        self,
        *,
        steps: Annotated[int, Field(gt=0, le=100_000)] = 100,
        learning_rate: Annotated[float, Field(gt=0)] = 0.1,
        pressure: Annotated[float, Field(ge=0)] = 1.0,
    ) -> None:
        self.steps, self.learning_rate, self.pressure = steps, learning_rate, pressure

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        device = study.steps[0].input_ids.device
        generator = torch.Generator("cpu").manual_seed(study.seed)
        logits = torch.full((study.depth,), OPEN, requires_grad=True)
        optimizer = torch.optim.Adam([logits], lr=self.learning_rate)
        batches = [batch for batch in study.steps if study.terms(batch)]
        free = torch.tensor([layer not in protected for layer in range(study.depth)])
        with freeze_weights(study.model), torch.enable_grad():
            for step in range(self.steps):
                study.stop()
                batch = batches[step % len(batches)]
                drawn = draw(logits, generator)
                gates = torch.where(free, drawn, 1.0).to(device)
                with apply_layer_gates(study.model, lambda layer, gates=gates: gates[layer]):
                    output = study.model(batch, Needs(logits=True))
                loss = study.summed_loss(output, batch) / study.terms(batch)
                wanted = keep - len(protected)  # a protected gate is open, whatever is drawn
                loss = loss.cpu() + self.pressure * (chance(logits)[free].sum() - wanted).square()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        chances = chance(logits.detach())
        scores = {layer: float(chances[layer]) for layer in range(study.depth)}
        return remove_lowest(scores, keep, protected, score="probability that its learned gate is open", form="{:.3f}")
