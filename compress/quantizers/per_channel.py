"""Symmetric integers with one scale per output channel of a matrix, or per row of a table: scale = max|w| / 127."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from compress.quantizers._base import SCALE_BITS, Base, Range, ScaleType, Shape, WideBits, balanced_codes, symmetric
from compress.quantizers._learned import fit_scale
from compress.quantizers._rounding import SMALLEST, round_scale
from compress.quantizers._saturation import row_range


class Quantizer(Base):
    """bits: bits per code; the scale follows the weight at every step, nothing is clipped.  overflow_safe: choose the
    scale so that int8 products are also exact on CPUs without VNNI; costs less than one bit of precision.
    range: "max": a scale covers its row; "mse": the scale with the least squared error, better below 4 bits.
    scale_dtype: how scales are stored.  balanced: use all codes, as many below zero as above and none of them zero, as
    in ParetoQ (2502.02631); better at 2 and 3 bits, not for matrices with many zeros.

    weight (out, in) → scale (out,); rows of a table (.., E) → scale (..).
    """

    fits: ClassVar[frozenset[str]] = frozenset({"weight", "table"})

    def __init__(
        self,
        shape: Shape = None,
        *,
        bits: WideBits = 8,
        overflow_safe: bool = False,
        range: Range = "max",
        scale_dtype: ScaleType = "fp32",
        balanced: bool = False,
    ) -> None:
        super().__init__()
        self.range, kept = range, SCALE_BITS[scale_dtype]
        self.scheme = (
            balanced_codes(bits, "row", scale_bits=kept)
            if balanced
            else symmetric(bits, "row", overflow_safe=overflow_safe, scale_bits=kept)
        )

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """Rows are rounded each by itself: what the others are makes no difference."""
        return super().forward(x)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (.., K) → scale and zeros (..)."""
        assert x is not None
        wanted = fit_scale(x, self.scheme) * self.scheme.highest if self.range == "mse" else None
        scale = row_range(x, self.scheme, wanted).clamp_min(SMALLEST) / self.scheme.highest
        scale = round_scale(scale, self.scheme)
        return scale, torch.zeros_like(scale)
