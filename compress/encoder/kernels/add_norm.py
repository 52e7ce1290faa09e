"""norm(x + dropout(y)), which ends both halves of a layer of BERT, as one kernel forward and one backward on a GPU.

As operators of torch: they have a meaning for fake tensors (tracing) too, and on a simulated device. Under autocast a
norm gives fp32, which the next products would each copy to bf16 and their gradients back. Here both are written at
once: the sum of both gradients is read by the backward kernel (`narrowed`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from compress.encoder.kernels import working

WIDEST = 4096
"""Numbers of a row that a program can hold."""
SMALLEST = 1 << 22
"""Numbers of what is normalized: of fewer, torch's own operators are sooner launched than a kernel of Triton, and the
GPU waits for the host anyway. `fuse_all` is for what is launched once and replayed."""
PROGRAMS, ROWS = 1024, 8
"""Of a backward pass: at most so many programs, of at least so many rows."""
_KINDS = (torch.float32, torch.bfloat16)
_NARROW = "_compress_narrow"

_library = torch.library.Library("compress", "FRAGMENT")
_library.define(
    "add_norm_(Tensor x, Tensor added, Tensor weight, Tensor? bias, Tensor? seed, Tensor(a!) made, Tensor(b!)? narrow,"
    " Tensor(c!)? means, Tensor(d!)? scales, float rate, float eps) -> ()"
)
_library.define(
    "add_norm_backward_(Tensor? gradient, Tensor? narrow_gradient, Tensor x, Tensor added, Tensor weight,"
    " Tensor? seed, Tensor means, Tensor scales, Tensor(a!) to_x, Tensor(b!) to_added, Tensor(c!)? sums,"
    " float rate) -> ()"
)


_fuses_all: ContextVar[bool] = ContextVar("fuses_all", default=False)


@contextmanager
def fuse_all() -> Iterator[None]:
    """Inside, small tensors are `support`ed too: steps and passes that a CUDA graph replays, or that equal such."""
    before = _fuses_all.set(True)
    try:
        yield
    finally:
        _fuses_all.reset(before)


def support(x: Tensor, added: Tensor, norm: nn.Module) -> bool:
    """Whether `add_norm` computes this norm of these: on a GPU where Triton works, where it is faster, and of a norm
    that nobody watches."""
    return (
        x.is_cuda
        and not torch.compiler.is_compiling()  # which makes such kernels by itself, and knows no ContextVar
        and (x.numel() >= SMALLEST or _fuses_all.get())
        and type(norm) is nn.LayerNorm
        and not (norm._forward_hooks or norm._forward_pre_hooks)
        and {x.dtype, added.dtype} <= set(_KINDS)
        and x.shape == added.shape
        and x.numel() > 0
        and x.shape[-1] <= WIDEST
        and working.are_working()
    )


def add_norm(x: Tensor, added: Tensor, norm: nn.LayerNorm, rate: float) -> Tensor:
    """norm(x + dropout(added)), x and added (.., D), where `support` says so.

    rate: of the dropout.  In the precision that torch would give; under autocast, `narrowed` of it costs nothing.
    """
    autocasts = torch.is_autocast_enabled("cuda")
    kind = torch.float32 if autocasts else torch.promote_types(x.dtype, added.dtype)
    narrow = torch.get_autocast_dtype("cuda") if autocasts else None
    found: Any = _AddNorm.apply(x, added, norm.weight, norm.bias, rate, norm.eps, kind, narrow)
    if narrow is None:
        return found
    made, made_narrow = found
    setattr(made, _NARROW, made_narrow)
    return made


def narrowed(x: Tensor) -> Tensor | None:
    """What `add_norm` gave, in autocast's precision; None of any other tensor, and without autocast."""
    return getattr(x, _NARROW, None) if torch.is_autocast_enabled("cuda") else None


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None, rate: float, eps: float,
        kind: torch.dtype, narrow: torch.dtype | None,
    ) -> Any:  # fmt: skip
        x, added = x.contiguous(), added.contiguous()
        made = torch.empty_like(x, dtype=kind)
        also = None if narrow is None else torch.empty_like(x, dtype=narrow)
        seed = torch.empty((), dtype=torch.int64, device=x.device).random_() if rate else None
        means = scales = None
        if any(ctx.needs_input_grad):
            rows = x.numel() // x.shape[-1]
            means, scales = (torch.empty(rows, dtype=torch.float32, device=x.device) for _ in range(2))
        torch.ops.compress.add_norm_(x, added, weight, bias, seed, made, also, means, scales, rate, eps)
        ctx.save_for_backward(x, added, weight, seed, means, scales)
        ctx.rate, ctx.bias_dtype = rate, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return made if also is None else (made, also)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, added, weight, seed, means, scales = ctx.saved_tensors
        wide, narrow = (None if g is None else g.contiguous() for g in (*gradients, None)[:2])
        to_x, to_added, sums = torch.empty_like(x), torch.empty_like(added), None
        _, _, wants_weight, wants_bias, *_ = ctx.needs_input_grad
        if wants_weight or wants_bias:
            sums = torch.empty(2, _count_programs(len(means)), x.shape[-1], dtype=torch.float32, device=x.device)
        torch.ops.compress.add_norm_backward_(
            wide, narrow, x, added, weight, seed, means, scales, to_x, to_added, sums, ctx.rate
        )
        to_weight, to_bias = (None, None) if sums is None else sums.sum(1).unbind()
        return (
            to_x,
            to_added,
            to_weight.to(weight.dtype) if wants_weight and to_weight is not None else None,
            to_bias.to(ctx.bias_dtype) if wants_bias and to_bias is not None else None,
            *(None,) * 4,
        )


# --- the operators ---


def launch(
    x: Tensor, added: Tensor, weight: Tensor, bias: Tensor | None, seed: Tensor | None, made: Tensor,
    narrow: Tensor | None, means: Tensor | None, scales: Tensor | None, rate: float, eps: float,
) -> None:  # fmt: skip
    """Raises ImportError without triton."""
    _triton, size = _import_triton(), x.shape[-1]
    block = _round_up(size)
    _triton.add_norm_kernel[(x.numel() // size,)](
        x, added, weight, _or(bias, x), _or(seed, x), made, _or(narrow, x), _or(means, x), _or(scales, x), size, rate,
        eps, DROPS=seed is not None, HAS_BIAS=bias is not None, NARROWS=narrow is not None, KEEPS=means is not None,
        BLOCK=block, num_warps=_find_warps(block), **working.OPTIONS,
    )  # fmt: skip


def launch_backward(
    gradient: Tensor | None, narrow_gradient: Tensor | None, x: Tensor, added: Tensor, weight: Tensor,
    seed: Tensor | None, means: Tensor, scales: Tensor, to_x: Tensor, to_added: Tensor, sums: Tensor | None,
    rate: float,
) -> None:  # fmt: skip
    """sums: (2, programs, D) of weight and bias. Raises ImportError without triton."""
    _triton, rows, size = _import_triton(), len(means), x.shape[-1]
    programs = _count_programs(rows) if sums is None else sums.shape[1]
    block = _round_up(size)
    to_weight, to_bias = (x, x) if sums is None else sums.unbind()
    _triton.add_norm_backward_kernel[(programs,)](
        _or(gradient, x), _or(narrow_gradient, x), x, added, weight, _or(seed, x), means, scales, to_x, to_added,
        to_weight, to_bias, rows, size, rate, WIDE=gradient is not None, NARROW=narrow_gradient is not None,
        DROPS=seed is not None, SUMS=sums is not None, BLOCK=block, num_warps=_find_warps(block), **working.OPTIONS,
    )  # fmt: skip


def _import_triton() -> Any:
    from compress.encoder.kernels import _add_norm_triton

    return _add_norm_triton


def _or(x: Tensor | None, other: Tensor) -> Tensor:
    """A kernel takes a pointer for what it does not read, too."""
    return other if x is None else x


def _count_programs(rows: int) -> int:
    return max(1, min(PROGRAMS, -(-rows // ROWS)))


def _round_up(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def _find_warps(block: int) -> int:
    return min(16, max(1, block // 256))


for _name, _launch in (("add_norm_", launch), ("add_norm_backward_", launch_backward)):
    _library.impl(_name, _launch, "CUDA")
    torch.library.register_fake(f"compress::{_name}", lambda *_: None, lib=_library)
