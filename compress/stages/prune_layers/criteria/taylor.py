"""First-order Taylor: estimated rise of the loss without a layer (Molchanov et al., arXiv 1906.10771)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import remove_lowest


class Criterion:
    """Score: minus the derivative of the mean loss with respect to the layer's gate: the rise of the loss if the loss
    were linear in the gate. Negative where the loss should fall."""

    reads_text = True
    reads_labels = True

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        values = -study.gradients().double().mean(1)
        scores = {layer: float(values[layer]) for layer in range(study.depth)}
        return remove_lowest(scores, keep, protected, score="first-order increase of the loss", form="{:+.2e}")
