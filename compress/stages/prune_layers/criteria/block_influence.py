"""Block influence: remove the layers that change their input least (Men et al., arXiv 2403.03853)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import remove_lowest


class Criterion:
    """Score: 1 − mean cosine similarity of a layer's input and output over all tokens, in the full model."""

    reads_text = True
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        cosines = study.angles().cosines()
        scores = {layer: float(1 - cosines[layer, layer + 1]) for layer in range(study.depth)}
        return remove_lowest(scores, keep, protected, score="block influence")
