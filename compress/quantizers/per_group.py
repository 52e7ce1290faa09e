"""Symmetric integers with one scale per group of neighbouring values in a row, as in ZeroQuant (2206.01861)."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from compress.quantizers._base import SCALE_BITS, Base, Bits, Group, Range, ScaleType, Shape, balanced_codes, symmetric
from compress.quantizers._learned import fit_scale, split_groups
from compress.quantizers._rounding import SMALLEST, round_scale


class Quantizer(Base):
    """bits: bits per code.  group: number of values that share a scale; the last group of a row may be smaller.
    range: "max": a scale covers its group, nothing is clipped; "mse": the scale with the least squared error, better
    below 4 bits.  scale_dtype: how scales are stored; fp16 takes half a bit per value in groups of 32, fp32 one.
    balanced: use all codes, as many below zero as above and none of them zero, as in ParetoQ (2502.02631); better at 2
    and 3 bits, not for matrices with many zeros.

    weight (out, in) → scale (out, ⌈in / group⌉); rows of a table likewise.
    """

    fits: ClassVar[frozenset[str]] = frozenset({"weight", "table"})

    def __init__(
        self,
        shape: Shape = None,
        *,
        bits: Bits = 4,
        group: Group = 32,
        range: Range = "max",
        scale_dtype: ScaleType = "fp32",
        balanced: bool = False,
    ) -> None:
        super().__init__()
        codes = balanced_codes if balanced else symmetric
        self.scheme = codes(bits, "group", group, scale_bits=SCALE_BITS[scale_dtype])
        self.group, self.range = group, range

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """Rows are rounded each by itself: what the others are makes no difference."""
        return super().forward(x)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (.., K) → scale and zeros (.., ⌈K / group⌉)."""
        assert x is not None
        if self.range == "mse":
            scale = fit_scale(x, self.scheme)
        else:
            widest = split_groups(x.abs(), self.group).amax(-1).clamp_min(SMALLEST)
            scale = round_scale(widest / self.scheme.highest, self.scheme)
        return scale, torch.zeros_like(scale)
