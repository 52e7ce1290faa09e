"""Neighbouring layers whose sharing moves the model's answers least share: measured, one join after the other."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.errors import UserError


class Pattern:
    """From every layer alone, the two neighbouring groups are joined that cost least, until there are `groups`.

    A join costs what it does to the answers when the layers share as this stage shares them (start, vectors,
    residuals), not trained: about N²/2 conversions of N layers.

    groups: how many are left.
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
