"""Groups named by the user."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups, ListOf
from compress.encoder.config.sharing import number_listed_groups


class Pattern:
    """groups: lists of layers, counted from 0; each layer is in exactly one list: [[0, 1], [2, 3], [4, 5]]."""

    def __init__(self, *, groups: Annotated[ListOf[ListOf[int]], Field(min_length=1)]) -> None:
        self.groups = groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for layers that are in no group, in two, or not there."""
        groups = number_listed_groups(depth, self.groups, "pattern.groups")
        return LayerGroups(groups, groups)
