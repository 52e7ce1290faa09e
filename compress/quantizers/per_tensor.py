"""Symmetric integers with one scale for a whole matrix or table, as in Q8BERT (1910.06188): scale = max|w| / 127."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from compress.quantizers._base import Base, Bits, Shape, symmetric
from compress.quantizers._rounding import SMALLEST
from compress.quantizers._saturation import row_range


class Quantizer(Base):
    """bits: bits per code; the scale follows the weight at every step, nothing is clipped.  overflow_safe: choose the
    scale so that int8 products are also exact on CPUs without VNNI."""

    fits: ClassVar[frozenset[str]] = frozenset({"weight", "table"})

    def __init__(self, shape: Shape = None, *, bits: Bits = 8, overflow_safe: bool = False) -> None:
        super().__init__()
        self.scheme = symmetric(bits, "tensor", overflow_safe=overflow_safe)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x: any shape → scale and zero ()."""
        assert x is not None
        scale = row_range(x, self.scheme).amax().clamp_min(SMALLEST) / self.scheme.highest
        return scale, torch.zeros_like(scale)
