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
Clamp = Literal["first", "last", "none"]
"""When codes are clamped, as gradients see it: before rounding, after it, or not at all."""


def expand_scale(scale: Tensor, x: Tensor, scheme: Scheme) -> Tensor:
    """Scales of `scheme`, shaped so that they multiply x (.., K)."""
    if scheme.per == "group":
        assert scheme.group is not None
        return scale[..., None].expand(*scale.shape, scheme.group).flatten(-2)[..., : x.shape[-1]]
    return scale if scheme.per == "tensor" else scale[..., None]


def nearest_codes(steps: Tensor, scheme: Scheme) -> Tensor:
    """Numbers in units of the scale → integers, half to even; of a balanced scheme odd ones."""
    return (steps - 1).div_(2).round_().mul_(2).add_(1) if scheme.balanced else torch.round(steps)


def codes_of(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """fp32 integers: x / scale (a division, as ONNX has it) rounded half to even, plus the zero point, clamped."""
    return _codes_of(x, expand_scale(scale, x, scheme), expand_scale(zero_point, x, scheme), scheme)


def _codes_of(x: Tensor, wide: Tensor, zero: Tensor, scheme: Scheme) -> Tensor:
    return nearest_codes(x / wide, scheme).add_(zero).clamp_(scheme.lowest, scheme.highest)


def numbers_of(codes: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """(code - zero point) * scale, fp32."""
    return (codes - expand_scale(zero_point, codes, scheme)).mul_(expand_scale(scale, codes, scheme))


def dequantize(quantized: QuantizedTensor) -> Tensor:
    """What the codes stand for, fp32."""
    q = quantized
    return numbers_of(q.codes.float(), q.scale, q.zero_point.float(), q.scheme)


def fake_quantize(x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme) -> Tensor:
    """x (.., K) → the numbers that its codes stand for, with a fixed scale.

    Gradient: 1 where x lies within the codes, 0 where it was clamped.
    """
    return learned_fake_quantize(x, scale.detach(), zero_point.detach(), scheme, "last")


def learned_fake_quantize(
    x: Tensor, scale: Tensor, zero_point: Tensor, scheme: Scheme, clamp: Clamp = "first"
) -> Tensor:
    """The same with gradients for scale and zero point.

    clamp: "first", before rounding, as the papers have it (1902.08153 eq. 3 and 5, 2004.09576 eq. 5 and 6); "last",
    after it; "none": the scale covers all of x and is not learned. The result is the same; the gradients differ for the
    half step beyond the outermost codes: clamped first, such a number counts as clamped. The result may be kept for the
    backward pass: do not change it in place.
    """
    wide, zero = expand_scale(scale, x, scheme), expand_scale(zero_point, x, scheme)
    return _FakeQuantize.apply(x.float(), wide, zero, scheme, clamp)  # pyright: ignore[reportReturnType]


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
    """In few passes, and without masks of booleans: on a CPU, one comparison takes as long as five multiplications."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, wide: Tensor, zero: Tensor, scheme: Scheme, clamp: Clamp) -> Tensor:
        made = _codes_of(x, wide, zero, scheme).sub_(zero).mul_(wide)
        ctx.scheme, ctx.clamp = scheme, clamp
        if clamp != "none":
            ctx.save_for_backward(x, wide, zero, made if ctx.needs_input_grad[1] else None)
        return made

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = grads
        if ctx.clamp == "none":
            return grad, None, None, None, None
        x, wide, zero, made = ctx.saved_tensors
        low, high = ctx.scheme.lowest, ctx.scheme.highest
        codes = x / wide
        if ctx.clamp == "last":
            codes, low, high = nearest_codes(codes, ctx.scheme), low - 0.5, high + 0.5
        inside = torch.ops.aten.hardtanh_backward(grad, codes.add_(zero), low, high)  # 0 where not low < code < high
        of_scale = of_zero = None
        if ctx.needs_input_grad[1]:
            of_scale = (grad * made).addcmul_(inside, x, value=-1).sum_to_size(wide.shape) / wide
        if ctx.needs_input_grad[2]:
            of_zero = ((inside - grad) * wide).sum_to_size(zero.shape)
        return inside, of_scale, of_zero, None, None


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
