"""LSQ+ (2004.09576): step size and offset of an activation are trained; the offset is rounded to a whole zero point, so
that integer kernels compute the same."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from compress.quantizers._base import Base, Bits, Shape, affine
from compress.quantizers._histogram import Histogram, least_square, scale_for
from compress.quantizers._learned import gradient_factor
from compress.quantizers._rounding import SMALLEST, clamp_codes, learned_fake_quantize, round_through, scale_gradient
from compress.quantizers._static import UNSET, require_range


class Quantizer(Base):
    """bits: bits per code, from 0 up.  clamp: "first": gradients as in the paper (equations 5 and 6), where values are
    clamped, then rounded; "last": values are rounded, then clamped.

    Step size and offset are initialized by the least squared error.
    """

    fits: ClassVar[frozenset[str]] = frozenset({"input"})
    calibrated: ClassVar[bool] = True

    def __init__(self, shape: Shape = None, *, bits: Bits = 8, clamp: Literal["first", "last"] = "first") -> None:
        super().__init__()
        self.clamp = clamp
        self.scheme = affine(bits)
        self.scale = nn.Parameter(torch.full((), UNSET, dtype=torch.float32))
        self.offset = nn.Parameter(torch.full((), UNSET, dtype=torch.float32))
        self._seen: Histogram | None = None

    def observe(self, x: Tensor) -> None:
        """Count the numbers of x."""
        if self._seen is None:
            self._seen = Histogram()
        self._seen.add(x)

    @torch.no_grad()
    def freeze(self) -> None:
        """Give step and offset their start. Raises UserError as `Static.freeze` does."""
        scale, zero_point = scale_for(*least_square(require_range(self._seen), self.scheme), self.scheme)
        self.scale.copy_(scale)
        self.offset.copy_(-zero_point * scale)
        self._seen = None

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """x (.., K) rounded to the codes and back, fp32; x, step and offset have gradients."""
        factor = gradient_factor(x.shape[-1], self.scheme)
        scale = scale_gradient(self.scale, factor).clamp_min(SMALLEST)
        zero_point = self._zero_point(scale, scale_gradient(self.offset, factor))
        return learned_fake_quantize(x, scale, zero_point, self.scheme, self.clamp)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """As trained so far, whatever x is."""
        scale = self.scale.detach().clamp_min(SMALLEST)
        return scale, self._zero_point(scale, self.offset.detach())

    def _zero_point(self, scale: Tensor, offset: Tensor) -> Tensor:
        return clamp_codes(round_through(-offset / scale, self.scheme), self.scheme)
