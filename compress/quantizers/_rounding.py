"""Rounding to codes and back, and what gradients make of it: straight-through estimation (1308.3432, 1902.08153)."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from compress.contracts import QuantizedTensor, Scheme

SMALLEST = 1e-30
"""Of a range: a row of zeros has a scale too, and its codes are 0."""
SMALLEST_HALF, LARGEST_HALF = 2.0**-14, 65504.0
"""Of a scale in fp16: smaller ones have fewer digits, and some runtimes read them as 0."""


def expand_scale(scale: Tensor, x: Tensor, scheme: Scheme) -> Tensor:
    """Scales of `scheme`, shaped so that they multiply x (.., K)."""
    if scheme.per == "group":
        assert scheme.group is not None
        return scale[..., None].expand(*scale.shape, scheme.group).flatten(-2)[..., : x.shape[-1]]
    return scale if scheme.per == "tensor" else scale[..., None]


def nearest_codes(steps: Tensor, scheme: Scheme) -> Tensor:
    """Numbers in units of the scale → integers, half to even; of a balanced scheme odd ones."""
    return 2 * torch.round((steps - 1) / 2) + 1 if scheme.balanced else torch.round(steps)


def codes_of(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """fp32 integers: x / scale (a division, as ONNX has it) rounded half to even, plus the zero point, clamped."""
    codes = nearest_codes(x / expand_scale(scale, x, scheme), scheme) + expand_scale(zero_point, x, scheme)
    return codes.clamp(scheme.lowest, scheme.highest)


def numbers_of(codes: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """(code - zero point) * scale, fp32."""
    return (codes - expand_scale(zero_point, codes, scheme)) * expand_scale(scale, codes, scheme)


def dequantize(quantized: QuantizedTensor) -> Tensor:
    """What the codes stand for, fp32."""
    q = quantized
    return numbers_of(q.codes.float(), q.scale, q.zero_point.float(), q.scheme)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """x (.., K) → the numbers that its codes stand for, with a fixed scale.

    Gradient: 1 where x lies within the codes, 0 where it was clamped.
    """
    return _FakeQuantize.apply(x.float(), scale, zero_point, scheme)  # pyright: ignore[reportReturnType]


def learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme, clamp: Literal["first", "last"] = "first"
) -> Tensor:
    """The same with gradients for scale and zero point.

    clamp: before rounding, as the papers have it (1902.08153 eq. 3 and 5, 2004.09576 eq. 5 and 6), or after it. The
    result is the same; the gradients differ for the half step beyond the outermost codes: clamped first, such a number
    counts as clamped.
    """
    wide, zero = expand_scale(scale, x, scheme), expand_scale(zero_point, x, scheme)
    steps = x.float() / wide
    if clamp == "last":
        return numbers_of(clamp_codes(round_through(steps, scheme) + zero, scheme), scale, zero_point, scheme)
    low, high = scheme.lowest - zero, scheme.highest - zero
    return round_through(torch.where(steps <= low, low, torch.where(steps >= high, high, steps)), scheme) * wide


def round_scale(scale: Tensor, scheme: Scheme) -> Tensor:
    """A scale > 0 as it is stored: the nearest fp16 number where `scale_bits` is 16, else itself; gradient 1."""
    if scheme.scale_bits == 32:
        return scale
    stored = scale.detach().clamp(SMALLEST_HALF, LARGEST_HALF).half().float()
    return stored + (scale - scale.detach())


def clamp_codes(codes: Tensor, scheme: Scheme) -> Tensor:
    """Codes clamped to those in use; gradient 1 where nothing was clamped, the two ends included: the gradient that
    torch's clamp has there depends on its version."""
    above = torch.where(codes < scheme.lowest, float(scheme.lowest), codes)
    return torch.where(above > scheme.highest, float(scheme.highest), above)


def round_through(x: Tensor, scheme: Scheme) -> Tensor:
    """x rounded to whole codes; gradient 1."""
    return _Round.apply(x, scheme)  # pyright: ignore[reportReturnType]


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x; gradient times `factor`."""
    return _ScaleGradient.apply(x, factor)  # pyright: ignore[reportReturnType]


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
        wide = expand_scale(scale, x, scheme)
        zero = expand_scale(zero_point, x, scheme)
        codes = nearest_codes(x / wide, scheme) + zero
        ctx.save_for_backward((codes >= scheme.lowest) & (codes <= scheme.highest))
        return (codes.clamp_(scheme.lowest, scheme.highest) - zero).mul_(wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside, None, None, None


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scheme: Scheme) -> Tensor:
        return nearest_codes(x, scheme)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None
