"""Share only the feed-forward part; the largest loss of quality in ALBERT's ablation (arXiv 1909.11942, table 4)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import build_contiguous_groups


class Pattern:
    """Each layer keeps its own attention.

    groups: number of groups of neighbouring layers that share the feed-forward part; 1: all layers share it.
    """

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)] = 1) -> None:
        self.groups = groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        shared, own = build_contiguous_groups(depth, self.groups, "pattern.groups"), tuple(range(depth))
        return LayerGroups(own, shared)
