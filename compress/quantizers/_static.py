"""Activations with one scale and zero point for all input, settled from what was observed and stored with the model."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from compress.errors import UserError
from compress.quantizers._base import Base, affine, scalar, symmetric
from compress.quantizers._histogram import Histogram, scale_for

UNSET = float("nan")
"""Of a scale that nothing was observed for: a model that is not calibrated cannot be written, and answers nothing."""


class Static(Base):
    """bits: of a code.  symmetric: codes -127..127 and zero point 0, in place of 0..255 that cover the range."""

    fits: ClassVar[frozenset[str]] = frozenset({"input"})
    calibrated: ClassVar[bool] = True
    scale: Tensor
    zero_point: Tensor

    def __init__(self, bits: int, signed: bool) -> None:
        super().__init__()
        self.scheme = symmetric(bits, "tensor") if signed else affine(bits)
        self.register_buffer("scale", scalar(UNSET))
        self.register_buffer("zero_point", scalar(0.0))
        self._seen: Histogram | None = Histogram()

    def observe(self, x: Tensor) -> None:
        """Count the numbers of x."""
        if self._seen is None:
            self._seen = Histogram()
        self._seen.add(x)

    def freeze(self) -> None:
        """Settle the scale. Raises UserError where nothing, a constant or non-finite numbers were observed."""
        seen = require_range(self._seen)
        self.settle(*self.choose_range(seen))
        self._seen = None  # many megabytes in a large model

    def choose_range(self, seen: Histogram) -> tuple[float, float]:
        """The range that the codes are to cover."""
        raise NotImplementedError

    @torch.no_grad()
    def settle(self, low: float, high: float) -> None:
        """Cover low..high from now on."""
        scale, zero_point = scale_for(low, high, self.scheme)
        self.scale.copy_(scale)
        self.zero_point.copy_(zero_point)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Scalars, whatever x is."""
        return self.scale, self.zero_point


def require_range(seen: Histogram | None) -> Histogram:
    """What was observed. Raises UserError where no range can be made of it."""
    if seen is not None and not seen.finite:
        raise UserError("its input contains NaN or infinity on the calibration rows", do="check the model's weights")
    if seen is None or seen.empty:
        raise UserError(
            "no activations were observed", why="its range is computed from calibration rows", do="use more rows"
        )
    if seen.low == seen.high:
        raise UserError(f"its input is always {seen.low:g} on the calibration rows", do="calibrate on real text")
    return seen
