"""Dropout at a fifth of the price on CPU.

torch draws one Bernoulli sample per element there, one after the other on one thread, whatever the thread count: in a
distillation step that is a tenth of the time. Here one 64-bit draw serves four elements, so that a probability is kept
to 2⁻¹⁶. Draws come from torch's default generator: a seed, or its saved state, gives the same masks again.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_LEVELS = 1 << 16


def dropout(x: Tensor, p: float) -> Tensor:
    """Each element set to 0 with probability p, else divided by 1 - p (1207.0580)."""
    if p == 0:
        return x
    if x.device.type != "cpu":
        return F.dropout(x, p)
    dropped: Tensor = _Dropout.apply(x, p)  # pyright: ignore[reportAssignmentType]
    return dropped


class Dropout(nn.Module):
    """`dropout` while training, nothing otherwise."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        return dropout(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        return f"p={self.p}"


def keep_mask(x: Tensor, p: float) -> tuple[Tensor, float]:
    """A bool mask like x, true with probability 1 - p to the nearest 2⁻¹⁶, and the factor that keeps the mean."""
    dropped = round(p * _LEVELS)
    words = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    levels = words.view(torch.int16)[: x.numel()].view(x.shape)
    return levels >= dropped - _LEVELS // 2, _LEVELS / (_LEVELS - dropped)


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, p: float) -> Tensor:
        mask, scale = keep_mask(x, p)
        ctx.save_for_backward(mask)
        ctx.scale = scale  # pyright: ignore[reportAttributeAccessIssue]
        return _apply(x, mask, scale)

    @staticmethod
    @once_differentiable
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (mask,) = ctx.saved_tensors  # pyright: ignore[reportAttributeAccessIssue]
        return _apply(grad, mask, ctx.scale), None  # pyright: ignore[reportAttributeAccessIssue]


def _apply(x: Tensor, mask: Tensor, scale: float) -> Tensor:
    # torch has the product of three under this name only: what the backward of its own dropout computes.
    return torch.ops.aten.native_dropout_backward(x, mask, scale)
