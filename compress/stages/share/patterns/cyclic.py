"""M groups over N layers in the three orders of "Lessons on Parameter Sharing" (Takase and Kiyono, arXiv
2104.06022)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from compress.contracts import LayerEvidence, LayerGroups
from compress.encoder.config.sharing import build_contiguous_groups

Order = Literal["sequence", "cycle", "cycle-reverse"]


class Pattern:
    """groups: number of groups.  order: for 3 groups over 6 layers, sequence is 0 0 1 1 2 2, cycle is 0 1 2 0 1 2, and
    cycle-reverse is 0 1 2 2 1 0 (a cycle whose last round is reversed).
    """

    def __init__(self, *, groups: Annotated[int, Field(ge=1, le=512)], order: Order = "cycle") -> None:
        self.groups, self.order = groups, order

    def __call__(self, depth: int, evidence: LayerEvidence) -> LayerGroups:
        """The groups of `depth` layers. Raises UserError for more groups than layers."""
        runs, count = build_contiguous_groups(depth, self.groups, "pattern.groups"), self.groups
        if self.order == "cycle":
            runs = tuple(layer % count for layer in range(depth))
        elif self.order == "cycle-reverse":
            last = max(count, count * (-(-depth // count) - 1))  # the first M layers are the groups themselves
            runs = tuple(n % count if n < last else count - 1 - n % count for n in range(depth))
        return LayerGroups(runs, runs)
