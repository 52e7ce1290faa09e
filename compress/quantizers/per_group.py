"""Symmetric integers with one scale per group of neighbouring values in a row, as in ZeroQuant (2206.01861)."""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from compress.quantizers._base import Base, Bits, Shape, symmetric
from compress.quantizers._rounding import SMALLEST


class Quantizer(Base):
    """bits: bits per code.  group: number of values that share a scale; the last group of a row may be smaller.

    weight (out, in) → scale (out, ⌈in / group⌉); rows of a table likewise.
    """

    fits: ClassVar[frozenset[str]] = frozenset({"weight", "table"})

    def __init__(
        self, shape: Shape = None, *, bits: Bits = 4, group: Annotated[int, Field(ge=2, le=65_536)] = 32
    ) -> None:
        super().__init__()
        self.scheme = symmetric(bits, "group", group)
        self.group = group

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """Rows are rounded each by itself: what the others are makes no difference."""
        return super().forward(x)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (.., K) → scale and zeros (.., ⌈K / group⌉)."""
        assert x is not None
        groups = F.pad(x.abs(), (0, -x.shape[-1] % self.group)).unflatten(-1, (-1, self.group))
        scale = groups.amax(-1).clamp_min(SMALLEST) / self.scheme.highest
        return scale, torch.zeros_like(scale)
