"""Baseline: remove the top layers (Sajjad et al., arXiv 2004.03844)."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.stages.prune_layers.criteria._common import choose_fixed


class Criterion:
    """Keep the first layers; reads no text. Meant for models before fine-tuning."""

    reads_text = False
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        return choose_fixed(range(keep), study.depth, protected, f"not among the first {keep}")
