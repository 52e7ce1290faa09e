"""Fisher information of layer gates: remove the layers whose gates affect the loss least (after arXiv 2204.09656)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import remove_lowest


class Criterion:
    """Score: mean square over rows of the derivative of the loss with respect to the layer's gate (1: on, 0: off)."""

    reads_text = True
    reads_labels = True

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        values = study.gradients().double().square().mean(1)
        scores = {layer: float(values[layer]) for layer in range(study.depth)}
        return remove_lowest(scores, keep, protected, score="Fisher information of its gate", form="{:.2e}")
