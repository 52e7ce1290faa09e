"""Static range from exponential moving averages of the minimum and maximum of the batches.

The range keeps moving during training, as in Q8BERT (1910.06188), and is fixed in evaluation.
"""

from __future__ import annotations

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from compress.quantizers._base import Bits, Shape
from compress.quantizers._histogram import Histogram
from compress.quantizers._static import Static, require_range


class Quantizer(Static):
    """bits: bits per code.  momentum: fraction of the old average that each update keeps.  symmetric: zero point 0,
    codes on both sides of zero.
    """

    moves: ClassVar[bool] = True
    still: bool = False
    """Whether it has stopped following, for the rest of a training."""
    average: Tensor
    """(2,) fp32: of least and greatest values."""

    def __init__(
        self,
        shape: Shape = None,
        *,
        bits: Bits = 8,
        momentum: Annotated[float, Field(gt=0, lt=1)] = 0.95,
        symmetric: bool = False,
    ) -> None:
        super().__init__(bits, symmetric)
        self.momentum = momentum
        self.register_buffer("average", torch.full((2,), float("nan"), dtype=torch.float32))

    def observe(self, x: Tensor) -> None:
        """One batch."""
        if x.numel():
            super().observe(x)
            self._follow(x)

    def freeze(self) -> None:
        """See `Static.freeze`; the range is the average's."""
        require_range(self._seen)
        self.settle(*self.average.tolist())
        self._seen = None

    def choose_range(self, seen: Histogram) -> tuple[float, float]:
        """The average, whatever the extremes were."""
        low, high = self.average.tolist()
        return low, high

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """See `Base.forward`. In training the range takes x up first."""
        if self.training and not self.still and torch.is_grad_enabled() and x.numel():
            self._follow(x.detach())
            self.settle(*self.average.tolist())
        return super().forward(x, of)

    @torch.no_grad()
    def _follow(self, x: Tensor) -> None:
        ends = torch.stack(torch.aminmax(x.float())).to(self.average)
        first = bool(self.average.isnan().any())
        self.average.copy_(ends if first else self.momentum * self.average + (1 - self.momentum) * ends)
