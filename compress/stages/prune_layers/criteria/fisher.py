"""Fisher information of layer gates: drops the layers whose gates affect the loss least (after arXiv 2204.09656)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import lowest_go


class Criterion:
    """Mean square, over rows, of the derivative of a row's loss by the layer's gate (1: as it is, 0: not there)."""

    reads_text = True
    reads_labels = True

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        values = study.gradients().double().square().mean(1)
        scores = {layer: float(values[layer]) for layer in range(study.depth)}
        return lowest_go(scores, keep, protected, score="Fisher information of its gate", form="{:.3g}")
