"""Baseline: remove the bottom layers (Sajjad et al., arXiv 2004.03844)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import choose_fixed


class Criterion:
    """Keep the last layers; reads no text."""

    reads_text = False
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        return choose_fixed(
            range(study.depth - keep, study.depth), study.depth, protected, f"not among the last {keep}"
        )
