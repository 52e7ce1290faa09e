"""Baseline: evenly spaced layers, including the last."""

from __future__ import annotations

from compress.contracts import LayerChoice, LayerStudy
from compress.encoder.config import layer_maps
from compress.stages.prune_layers.criteria._common import choose_fixed


class Criterion:
    """Keep every n-th layer, counted so that the last layer stays; reads no text."""

    reads_text = False
    reads_labels = False

    def __call__(self, study: LayerStudy, keep: int, protected: frozenset[int]) -> LayerChoice:
        kept = [layer for _, layer in layer_maps.resolve("uniform", keep, study.depth)]
        return choose_fixed(kept, study.depth, protected, "not among the evenly spaced layers")
