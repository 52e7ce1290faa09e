"""No sharing, to factorize only the embeddings."""

from __future__ import annotations

from compress.contracts import LayerEvidence, LayerGroups


class Pattern:
    """Every layer keeps its own parameters."""

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers."""
        return LayerGroups(tuple(range(depth)), tuple(range(depth)))
