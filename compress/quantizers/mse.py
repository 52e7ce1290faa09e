"""Static range with the least squared error of rounding and clipping, within the observed range."""

from __future__ import annotations

from compress.quantizers._base import Bits, Shape
from compress.quantizers._histogram import Histogram, least_square
from compress.quantizers._static import Static


class Quantizer(Static):
    """bits: bits per code.  symmetric: zero point 0, codes on both sides of zero."""

    def __init__(self, shape: Shape = None, *, bits: Bits = 8, symmetric: bool = False) -> None:
        super().__init__(bits, symmetric)

    def choose_range(self, seen: Histogram) -> tuple[float, float]:
        """The best of 91 parts, 10 % to 100 %."""
        return least_square(seen, self.scheme)
