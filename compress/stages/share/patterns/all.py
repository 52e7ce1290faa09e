"""One for all: every layer is the same (ALBERT, 1909.11942)."""

from __future__ import annotations

from compress.contracts import LayerEvidence, LayerGroups


class Pattern:
    """All layers share attention and feed-forward part."""

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers."""
        return LayerGroups((0,) * depth, (0,) * depth)
