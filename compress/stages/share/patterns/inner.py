"""ALBERT's inner groups: a group is a sequence of several layers that is repeated (arXiv 1909.11942)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import build_contiguous_groups
from compress.errors import UserError


class Pattern:
    """inner: layers per group (inner_group_num).  groups: number of groups (num_hidden_groups), each repeated over its
    run of layers. 12 layers with inner 2 and groups 1 are 0 1 0 1 0 1 …
    """

    def __init__(
        self, *, inner: Annotated[int, Field(ge=1, le=512)], groups: Annotated[int, Field(ge=1, le=512)] = 1
    ) -> None:
        self.inner, self.groups = inner, groups

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError where they do not come out even."""
        if depth % self.inner:
            fitting = ", ".join(str(n) for n in range(1, depth + 1) if depth % n == 0)
            raise UserError(
                f"inner groups of {self.inner} layers do not divide {depth} layers",
                where="pattern.inner",
                do=f"use {fitting}",
            )
        if self.groups > depth // self.inner:
            raise UserError(
                f"{self.groups} groups of {depth // self.inner} rounds of {self.inner} layers",
                where="pattern.groups",
                do=f"use 1..{depth // self.inner}",
            )
        runs = build_contiguous_groups(depth // self.inner, self.groups, "pattern.groups")
        groups = tuple(run * self.inner + place for run in runs for place in range(self.inner))
        return LayerGroups(groups, groups)
