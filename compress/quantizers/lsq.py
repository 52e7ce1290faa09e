"""Learned step size (LSQ, 1902.08153): the step is trained with the weights, its gradient scaled by 1/sqrt(N Qp)."""

from __future__ import annotations

from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from compress.errors import UserError
from compress.quantizers._base import SCALE_BITS, Base, Bits, Group, ScaleType, Shape, balanced_codes
from compress.quantizers._histogram import Histogram, least_square
from compress.quantizers._learned import fit_scale, full, gradient_factor
from compress.quantizers._rounding import SMALLEST, learned_fake_quantize, round_scale, scale_gradient
from compress.quantizers._static import UNSET, require_range


class Quantizer(Base):
    """bits: bits per code; all codes are used, -128..127 with 8 bits.  per: for a weight, one step size per "row"
    (output channel), per "tensor", or per "group" of neighbouring values in a row; an input has one.  group:
    size of such a group.  scale_dtype: how the step sizes of a weight are stored.  clamp: "first": gradients as
    in the paper (equations 3 and 5), where values are clamped, then rounded; "last": values are rounded, then
    clamped, so that values up to half a step beyond the largest code count as not clamped.  balanced, of a
    weight: as many codes below zero as above, none of them zero, as in ParetoQ (2502.02631); better at 2 and 3
    bits, not for matrices with many zeros.

    The step size is initialized by the least squared error. N is the number of values that share a step size; for an
    input, those of one token.
    """

    fits: ClassVar[frozenset[str]] = frozenset({"weight", "input"})
    calibrated: ClassVar[bool] = True

    def __init__(
        self,
        shape: Shape = None,
        *,
        bits: Bits = 8,
        per: Literal["row", "tensor", "group"] = "row",
        group: Group = 32,
        scale_dtype: ScaleType = "fp32",
        balanced: bool = False,
        clamp: Literal["first", "last"] = "first",
    ) -> None:
        super().__init__()
        self.clamp = clamp
        if shape is None:
            self.scheme, size = full(bits, "tensor"), ()
        else:
            by_group = per == "group"
            codes = balanced_codes if balanced else full
            self.scheme = codes(bits, per, group if by_group else None, SCALE_BITS[scale_dtype])
            size = {"row": (shape[0],), "group": (shape[0], -(-shape[1] // group)), "tensor": ()}[per]
        self.scale = nn.Parameter(torch.full(size, UNSET, dtype=torch.float32))
        self._of_weight = shape is not None
        self._seen: Histogram | Tensor | None = None

    def observe(self, x: Tensor) -> None:
        """An input is counted; of a weight the last one is kept."""
        if self._of_weight:
            self._seen = x.detach()
            return
        if not isinstance(self._seen, Histogram):
            self._seen = Histogram()
        self._seen.add(x)

    @torch.no_grad()
    def freeze(self) -> None:
        """Give the step its start. Raises UserError as `Static.freeze` does."""
        seen = self._seen
        if self._of_weight:
            if not isinstance(seen, Tensor) or not bool(torch.isfinite(seen).all()):
                raise UserError("its weight contains NaN or infinity", do="check the model's weights")
            scale = fit_scale(seen, self.scheme)
        else:
            low, high = least_square(require_range(seen if isinstance(seen, Histogram) else None), self.scheme)
            scale = torch.tensor(max(high / self.scheme.highest, low / self.scheme.lowest, SMALLEST))
        self.scale.copy_(scale)
        self._seen = None

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """x (.., K) rounded to the codes and back, fp32; x and step have gradients."""
        if self._of_weight and self.scheme.per == "tensor":
            shared = x.numel()
        else:
            shared = min(self.scheme.group or x.shape[-1], x.shape[-1])
        scale = scale_gradient(self.scale, gradient_factor(shared, self.scheme)).clamp_min(SMALLEST)
        scale = round_scale(scale, self.scheme)
        return learned_fake_quantize(x, scale, torch.zeros_like(scale), self.scheme, self.clamp)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The step as trained so far, whatever x is."""
        scale = round_scale(self.scale.detach().clamp_min(SMALLEST), self.scheme)
        return scale, torch.zeros_like(scale)
