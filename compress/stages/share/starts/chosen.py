"""A copy of one of the tied layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

from torch import Tensor

from compress.contracts import Member


class Start:
    """layer: which layer of a group is copied: the first, the last, or the middle one (of two, the first)."""

    reads: ClassVar[str] = "nothing"

    def __init__(self, *, layer: Literal["first", "middle", "last"] = "first") -> None:
        self.layer = layer

    def __call__(self, members: Sequence[Member]) -> Tensor:
        """(out, in) of the group."""
        place = {"first": 0, "middle": (len(members) - 1) // 2, "last": len(members) - 1}[self.layer]
        return members[place].weight
