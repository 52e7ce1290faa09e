"""What the quantizers share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from compress.contracts import QuantizedTensor, Scheme
from compress.errors import UserError
from compress.quantizers._rounding import Clamp, codes_of, learned_fake_quantize

Bits = Annotated[int, Field(ge=2, le=8)]
"""Of a code: 2 to 8."""
MOST_BALANCED = 7
WideBits = Annotated[int, Field(ge=2, le=16)]
"""The same up to 16, of what is stored in integers and computed with in floats; from 9 on two bytes a code."""
Group = Annotated[int, Field(ge=2, le=65_536)]
"""Number of neighbouring values that share a scale."""
Range = Literal["max", "mse"]
"""What a scale that follows its weights covers: all of them, or the range with the least squared error."""
ScaleType = Literal["fp32", "fp16"]
"""How scales are stored."""
SCALE_BITS: Mapping[ScaleType, Literal[16, 32]] = {"fp32": 32, "fp16": 16}
Shape = Sequence[int] | None
"""Of the weight or table; None of an activation."""


class Base(nn.Module):
    """A quantizer whose scale comes from `scale_and_zero_point`, without a gradient of its own."""

    fits: ClassVar[frozenset[str]]
    calibrated: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    """Whether scale and zero point follow the input while training."""
    clamp: Clamp = "last"
    scheme: Scheme

    def observe(self, x: Tensor) -> None:
        """Nothing is to be noted."""

    def freeze(self) -> None:
        """Nothing moves."""

    def forward(self, x: Tensor, of: Tensor | None = None) -> Tensor:
        """x (.., K) rounded to the codes and back, fp32."""
        with torch.no_grad():
            scale, zero_point = self.scale_and_zero_point((x if of is None else of).float())
        return learned_fake_quantize(x, scale, zero_point, self.scheme, self.clamp)

    def scale_and_zero_point(self, x: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """See `contracts.Quantizer`."""
        raise NotImplementedError

    @torch.no_grad()
    def export(self, x: Tensor) -> QuantizedTensor:
        """x as integers."""
        x = x.float()
        scale, zero_point = self.scale_and_zero_point(x)
        kind = torch.int16 if self.scheme.bits > 8 else torch.int8 if self.scheme.signed else torch.uint8
        codes = codes_of(x, scale, zero_point, self.scheme).to(kind)
        return QuantizedTensor(codes, scale.clone(), zero_point.to(torch.int32), self.scheme)


def balanced_codes(bits: int, per: str, group: int | None = None, scale_bits: int = 32) -> Scheme:
    """All codes of `bits` bits, as many below zero as above, none of them zero: -3, -1, 1, 3 of 2 bits. With one code
    fewer, as `symmetric` has it, a Gaussian matrix in 2 bits has 1.5 times the squared error.

    Raises UserError for more than 7 bits, whose codes are not int8.
    """
    if bits > MOST_BALANCED:
        raise UserError(f"balanced codes have at most {MOST_BALANCED} bits", do="remove balanced, or use fewer bits")
    highest = 2**bits - 1
    return Scheme(bits, -highest, highest, per, group, False, scale_bits, True)  # pyright: ignore[reportArgumentType]


def symmetric(
    bits: int, per: str, group: int | None = None, *, overflow_safe: bool = False, scale_bits: int = 32
) -> Scheme:
    """As many codes below zero as above: -127..127 of 8 bits."""
    highest = 2 ** (bits - 1) - 1
    return Scheme(bits, -highest, highest, per, group, overflow_safe, scale_bits)  # pyright: ignore[reportArgumentType]


def affine(bits: int) -> Scheme:
    """Codes from 0 up, one scale for the tensor: 0..255 of 8 bits."""
    return Scheme(bits, 0, 2**bits - 1, "tensor")


def scalar(value: float) -> Tensor:
    """() fp32 on the default device, for a buffer."""
    return torch.full((), value, dtype=torch.float32)
