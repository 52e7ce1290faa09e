"""Tie the neighbouring layers whose sharing changes the model's outputs least, measured one merge at a time."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.errors import UserError


class Pattern:
    """Start with one group per layer and merge the two neighbouring groups of lowest cost until `groups` are left.

    Cost of a merge: change of the outputs when the layers are tied as this stage ties them (init, norms and biases,
    residuals), without training. Takes about N²/2 conversions for N layers.

    groups: number of groups.
    """

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)]) -> None:
        self.groups = groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        if self.groups > depth:
            raise UserError(f"{self.groups} groups of {depth} layers", where="pattern.groups", do=f"use 1..{depth}")
        runs = tuple(range(depth))
        while runs[-1] + 1 > self.groups:
            joins = [tuple(g - (g > first) for g in runs) for first in range(runs[-1])]
            costs = [evidence.damage(LayerGroups(join, join)) for join in joins]
            runs = joins[costs.index(min(costs))]
        return LayerGroups(runs, runs)
