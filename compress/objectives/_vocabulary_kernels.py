"""The kernels of `_triton` as operators of torch, for logits on a GPU where Triton works.

As operators they have a meaning for fake tensors (tracing) too, and on a simulated device.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import VocabularyOutput
from compress.encoder.kernels import working

MULTIPLE = 64
"""Of numbers in a row that is made here: what a GPU multiplies fastest, and each row begins on 16 bytes."""
_ALIGNMENT = 16
_KINDS = (torch.float32, torch.bfloat16)

_library = torch.library.Library("compress", "FRAGMENT")
_library.define(
    "divergence_(Tensor student, Tensor teacher, Tensor(a!) loss, Tensor(b!)? gradient, float temperature,"
    " float slope) -> ()"
)
_library.define(
    "cross_entropy_(Tensor logits, Tensor labels, Tensor(a!) loss, Tensor(b!)? gradient, float slope) -> ()"
)
_library.define("scale_(Tensor(a!) numbers, Tensor factor) -> ()")


def support(logits: Tensor) -> bool:
    """Whether losses of these logits are computed here."""
    return logits.is_cuda and logits.dtype in _KINDS and working.are_working()


def divergence(student: Tensor, teacher: Tensor, gradient: Tensor | None, temperature: float, slope: float) -> Tensor:
    """(r,) T²·KL(softmax(teacher/T) ‖ softmax(student/T)) of logits (r, V); its gradient in the student's logits, times
    `slope`, is written into `gradient` (`new_gradient`)."""
    loss = torch.empty(student.shape[0], dtype=torch.float32, device=student.device)
    torch.ops.compress.divergence_(student, teacher, loss, gradient, temperature, slope)
    return loss * temperature**2


def cross_entropy(logits: Tensor, labels: Tensor, gradient: Tensor | None, slope: float) -> Tensor:
    """(r,) −log softmax(logits)[label] of logits (r, V) and labels (r,), 0 for a label below 0; its gradient, times
    `slope`, is written into `gradient`."""
    loss = torch.empty(logits.shape[0], dtype=torch.float32, device=logits.device)
    torch.ops.compress.cross_entropy_(logits, labels, loss, gradient, slope)
    return loss


def new_gradient(logits: Tensor) -> Tensor:
    """(R, V) for the gradient of such logits, in rows that lie a multiple of 64 numbers apart, with zeros between."""
    rows, size = logits.shape
    buffer = logits.new_empty(rows, _round_up(size, MULTIPLE))
    buffer[:, size:] = 0
    return buffer[:, :size]


def whole_rows(gradient: Tensor) -> Tensor:
    """(R, V') of what `new_gradient` made, with the zeros: memory without gaps, which a GPU reads faster. Any other
    gradient (R, V) is copied into such memory."""
    rows, size = gradient.shape
    width = _round_up(size, MULTIPLE)
    if gradient.stride() != (width, 1):
        return F.pad(gradient, (0, width - size))
    return gradient.as_strided((rows, width), (width, 1))


def scale_(gradient: Tensor, factor: Tensor) -> None:
    """Multiply what `new_gradient` made by a number () in fp32, in place. torch's own `mul_` reads numbers of two kinds
    one by one: on an H200 at 1 of 4 TB/s."""
    torch.ops.compress.scale_(whole_rows(gradient), factor)


# --- logits in rows that a GPU reads fast ---


def pad(output: VocabularyOutput) -> VocabularyOutput:
    """The same with a table whose rows are a multiple of 64, in the precision of the features: the logits of what was
    added lie behind the others, and mean nothing."""
    room = -output.weight.shape[0] % MULTIPLE
    weight, bias = (x if x is None else x.to(output.features.dtype) for x in (output.weight, output.bias))
    if room:
        assert weight is not None
        weight, bias = F.pad(weight, (0, 0, 0, room)), None if bias is None else F.pad(bias, (0, room))
    return dataclasses.replace(output, weight=weight, bias=bias)


def padded_logits(output: VocabularyOutput) -> Tensor:
    """(M, V) logits in rows that lie a multiple of 64 numbers apart, in the precision of the features."""
    value: Tensor = _PaddedProduct.apply(output.features, output.weight, output.bias)  # pyright: ignore[reportAssignmentType]
    return value


class _PaddedProduct(torch.autograd.Function):
    """Its gradient is multiplied as it comes, whatever lies between rows; autograd's own would copy it first."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padded = pad(VocabularyOutput(features, weight, bias))
        ctx.save_for_backward(features, padded.weight)
        ctx.size, ctx.weight_dtype, ctx.bias_dtype = weight.shape[0], weight.dtype, None if bias is None else bias.dtype
        return padded.logits()[:, : ctx.size]

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        features, table = ctx.saved_tensors
        wants_features, wants_weight, wants_bias = ctx.needs_input_grad
        grad = whole_rows(grad)
        return (
            grad @ table if wants_features else None,
            (grad.mT @ features)[: ctx.size].to(ctx.weight_dtype) if wants_weight else None,
            grad.sum(0)[: ctx.size].to(ctx.bias_dtype) if wants_bias else None,
        )


def _round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


# --- the operators ---


def launch_divergence(
    student: Tensor, teacher: Tensor, loss: Tensor, gradient: Tensor | None, temperature: float, slope: float
) -> None:
    """See `divergence`. Written is also loss (r,), the KL of each row without T². Raises ImportError without triton."""
    _triton = _import_triton()
    written = student if gradient is None else gradient
    _triton.divergence_kernel[(student.shape[0],)](
        student,
        teacher,
        written,
        loss,
        student.stride(0),
        teacher.stride(0),
        written.stride(0),
        _find_width(student),
        _find_width(teacher),
        _find_width(written),
        student.shape[1],
        1 / temperature,
        temperature * slope,
        DIFFERENTIATE=gradient is not None,
        BLOCK=_triton.BLOCK,
        num_warps=_triton.WARPS,
        **working.OPTIONS,
    )


def launch_cross_entropy(logits: Tensor, labels: Tensor, loss: Tensor, gradient: Tensor | None, slope: float) -> None:
    """See `cross_entropy`. Written is also loss (r,), of each row. Raises ImportError without triton."""
    _triton = _import_triton()
    written = logits if gradient is None else gradient
    _triton.cross_entropy_kernel[(logits.shape[0],)](
        logits,
        labels,
        written,
        loss,
        logits.stride(0),
        written.stride(0),
        _find_width(logits),
        _find_width(written),
        logits.shape[1],
        slope,
        DIFFERENTIATE=gradient is not None,
        BLOCK=_triton.BLOCK,
        num_warps=_triton.WARPS,
        **working.OPTIONS,
    )


def launch_scale(numbers: Tensor, factor: Tensor) -> None:
    """numbers: without gaps between them.  factor: (), in fp32. Raises ImportError without triton."""
    _triton, size = _import_triton(), numbers.numel()
    programs = -(-size // _triton.BLOCK)
    _triton.scale_kernel[(programs,)](
        numbers, factor, size, BLOCK=_triton.BLOCK, num_warps=_triton.WARPS, **working.OPTIONS
    )


def _import_triton() -> Any:
    from compress.objectives import _triton

    return _triton


def _find_width(x: Tensor) -> int:
    """Of how many numbers each row of (r, V) has memory of its own: V, rounded up where there is room between rows."""
    rows, size = x.shape
    width = _round_up(size, _ALIGNMENT)
    end = x.storage_offset() + (rows - 1) * x.stride(0) + width
    fits = width <= x.stride(0) and end * x.element_size() <= x.untyped_storage().nbytes()
    return width if fits else size


for _name, _launch in (
    ("divergence_", launch_divergence),
    ("cross_entropy_", launch_cross_entropy),
    ("scale_", launch_scale),
):
    _library.impl(_name, _launch, "CUDA")
    torch.library.register_fake(f"compress::{_name}", lambda *_: None, lib=_library)
