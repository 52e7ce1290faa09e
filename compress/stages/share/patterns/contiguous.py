"""Runs of neighbouring layers are one each: what layers next to each other do is most alike (2410.20672)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import contiguous


class Pattern:
    """groups: how many runs, as even as they can be, cut where ALBERT cuts its num_hidden_groups."""

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)]) -> None:
        self.groups = groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        runs = contiguous(depth, self.groups, "pattern.groups")
        return LayerGroups(runs, runs)
