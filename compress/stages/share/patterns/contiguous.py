"""Each run of neighbouring layers is one group: neighbours are most similar (arXiv 2410.20672)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import build_contiguous_groups


class Pattern:
    """groups: number of groups, of sizes as equal as possible, split as ALBERT's num_hidden_groups."""

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)]) -> None:
        self.groups = groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        runs = build_contiguous_groups(depth, self.groups, "pattern.groups")
        return LayerGroups(runs, runs)
