"""Symmetric integers with one scale per token, computed at run time: scale = max|x| / 127.

No calibration, and the output of a row does not depend on the other rows of its batch (ZeroQuant, 2206.01861).
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from compress.quantizers._base import Base, Bits, Shape, symmetric
from compress.quantizers._rounding import SMALLEST


class Quantizer(Base):
    """bits: bits per code; nothing is clipped."""

    fits: ClassVar[frozenset[str]] = frozenset({"input"})
    clamp = "none"

    def __init__(self, shape: Shape = None, *, bits: Bits = 8) -> None:
        super().__init__()
        self.scheme = symmetric(bits, "token")

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """x (.., K) → scale and zeros (..)."""
        assert x is not None
        scale = x.abs().amax(-1).clamp_min(SMALLEST) / self.scheme.highest
        return scale, torch.zeros_like(scale)
