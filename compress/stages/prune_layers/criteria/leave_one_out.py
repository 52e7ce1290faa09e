"""Leave-one-out loss: remove the layers whose removal alone raises the loss least."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import list_remaining, remove_lowest


class Criterion:
    """Score: loss on the labels without the layer minus the loss of the full model; one pass per layer."""

    reads_text = True
    reads_labels = True

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        whole = tuple(range(study.depth))
        without = {layer: list_remaining(study.depth, [layer]) for layer in whole}
        losses = study.losses([whole, *without.values()])
        scores = {layer: losses[kept] - losses[whole] for layer, kept in without.items()}
        return remove_lowest(scores, keep, protected, score="increase of the loss without it", form="{:+.4f}")
