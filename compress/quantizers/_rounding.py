"""Rounding to codes and back, and what gradients make of it: straight-through estimation (1308.3432, 1902.08153)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compress.contracts import QuantizedTensor, Scheme

SMALLEST = 1e-30
"""Of a range: a row of zeros has a scale too, and its codes are 0."""


def expand_scale(scale: Tensor, x: Tensor, scheme: Scheme) -> Tensor:
    """Scales of `scheme`, shaped so that they multiply x (.., K)."""
    if scheme.per == "group":
        assert scheme.group is not None
        return scale.repeat_interleave(scheme.group, dim=-1)[..., : x.shape[-1]]
    return scale if scheme.per == "tensor" else scale[..., None]


def codes_of(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """fp32 integers: x / scale (a division, as ONNX has it) rounded half to even, plus the zero point, clamped."""
    codes = torch.round(x / expand_scale(scale, x, scheme)) + expand_scale(zero_point, x, scheme)
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


def learned_fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """The same with gradients for scale and zero point (1902.08153 eq. 3, 2004.09576 eq. 5 and 6)."""
    codes = round_through(x.float() / expand_scale(scale, x, scheme)) + expand_scale(zero_point, x, scheme)
    return numbers_of(clamp_codes(codes, scheme), scale, zero_point, scheme)


def clamp_codes(codes: Tensor, scheme: Scheme) -> Tensor:
    """Codes clamped to those in use; gradient 1 where nothing was clamped, the two ends included: the gradient that
    torch's clamp has there depends on its version."""
    above = torch.where(codes < scheme.lowest, float(scheme.lowest), codes)
    return torch.where(above > scheme.highest, float(scheme.highest), above)


def round_through(x: Tensor) -> Tensor:
    """x rounded half to even; gradient 1."""
    return _Round.apply(x)  # pyright: ignore[reportReturnType]


def scale_gradient(x: Tensor, factor: float) -> Tensor:
    """x; gradient times `factor`."""
    return _ScaleGradient.apply(x, factor)  # pyright: ignore[reportReturnType]


class _FakeQuantize(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
        wide = expand_scale(scale, x, scheme)
        zero = expand_scale(zero_point, x, scheme)
        codes = torch.round(x / wide) + zero
        ctx.save_for_backward((codes >= scheme.lowest) & (codes <= scheme.highest))
        return (codes.clamp_(scheme.lowest, scheme.highest) - zero).mul_(wide)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        (inside,) = ctx.saved_tensors
        return grads[0] * inside, None, None, None


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.round(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0]


class _ScaleGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * ctx.factor, None
