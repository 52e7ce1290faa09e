"""Windowed attention whose cost and memory grow with the length, not with its square (2004.05150).

The tokens of a sequence are taken in blocks. A block's queries meet the keys of its own tokens, of one window on
either side and of the global tokens, with a mask for the corners; the global tokens' queries meet every key. Blocks
of 64 queries measured fastest on CPU for windows of 64 and of 256: a larger block computes more that is masked.

In training nothing of the blocks is kept: the backward pass computes each block again, as checkpointing does
(1604.06174), so that what remains of a layer's attention is its queries, keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from compress.encoder.modules.attention import attention
from compress.encoder.modules.pattern import AttentionPattern

_BLOCK = 64  # queries


def build_window_mask(length: int, pattern: AttentionPattern, device: torch.device) -> Tensor:
    """(length, length) bool: whether the row's token sees the column's. Quadratic: for maps, padding and export."""
    steps = torch.arange(length, device=device)
    return _visible(steps, steps, pattern)


def attend_in_windows(
    q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float, real: Tensor | None = None
) -> Tensor:
    """softmax(q kᵀ / √K) v over what `pattern` lets each token see: (n, H, l, K) each → (n, H, l, K).

    real: (n, l) bool, false on padding, which only sees itself and is seen by nobody else.
    """
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        context: Tensor = _Recomputed.apply(q, k, v, pattern, dropout, real)  # pyright: ignore[reportAssignmentType]
        return context
    return _forward(q, k, v, pattern, dropout, real)


def _forward(q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float, real: Tensor | None) -> Tensor:
    context = torch.empty_like(q)
    with torch.autocast(q.device.type, enabled=False):
        for rows, columns, bias in _blocks(q, pattern, real):
            context[:, :, rows] = attention(q[:, :, rows], _take(k, columns), _take(v, columns), dropout, bias)
    return context


class _Recomputed(torch.autograd.Function):
    """`_forward`, whose backward pass computes each block once more, with the same dropout."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, pattern: AttentionPattern, dropout: float, real: Any) -> Any:
        ctx.save_for_backward(q, k, v, real)
        ctx.pattern, ctx.dropout = pattern, dropout
        ctx.random = _random_state(q) if dropout else None
        return _forward(q, k, v, pattern, dropout, real)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, real = ctx.saved_tensors
        grads = [torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)]
        device = q.device
        kept = [device] if device.type == "cuda" else []
        with torch.random.fork_rng(kept, enabled=ctx.random is not None), torch.autocast(device.type, enabled=False):
            if ctx.random is not None:
                _set_random_state(q, ctx.random)
            for rows, columns, bias in _blocks(q, ctx.pattern, real):
                parts = [q[:, :, rows], _take(k, columns), _take(v, columns)]
                with torch.enable_grad():
                    parts = [part.detach().requires_grad_() for part in parts]
                    context = attention(*parts, ctx.dropout, bias)
                at_rows, at_keys, at_values = torch.autograd.grad(context, parts, grad[:, :, rows])
                grads[0][:, :, rows] = at_rows
                _add(grads[1], columns, at_keys)
                _add(grads[2], columns, at_values)
        return *grads, None, None, None


Columns = tuple[int, slice]
"""How many tokens from the first on, and then which."""


def _blocks(
    q: Tensor, pattern: AttentionPattern, real: Tensor | None
) -> Iterator[tuple[slice, Columns, Tensor | None]]:
    """Rows, the columns that they see and the bias that masks the corners, block after block."""
    length, first, window = q.shape[2], pattern.global_tokens, pattern.window
    assert window is not None
    if first:
        rows, columns = slice(0, first), (0, slice(0, length))
        yield rows, columns, None if real is None else _bias(q, rows, columns, pattern, real)
    whole = None  # the bias that all blocks have which no end of the sequence cuts
    for start in range(first, length, _BLOCK):
        rows = slice(start, min(start + _BLOCK, length))
        low, high = start - window, rows.stop + window
        columns = (first, slice(low, min(high, length))) if low > first else (0, slice(0, min(high, length)))
        if real is not None or low <= first or high > length or rows.stop - start < _BLOCK:
            bias = _bias(q, rows, columns, pattern, real)
        else:
            bias = whole = _bias(q, rows, columns, pattern, None) if whole is None else whole
        yield rows, columns, bias


def _bias(q: Tensor, rows: slice, columns: Columns, pattern: AttentionPattern, real: Tensor | None) -> Tensor:
    """What is added to the scores, 0 or -inf: (rows, columns), or (n, 1, rows, columns) where rows have padding."""
    steps = torch.arange(q.shape[2], device=q.device)
    at = _take(steps, columns)
    visible = _visible(steps[rows], at, pattern)
    if real is not None:
        visible = visible & _take(real, columns)[:, None, :] | (steps[rows, None] == at)
        visible = visible[:, None]
    return torch.zeros(visible.shape, dtype=q.dtype, device=q.device).masked_fill_(~visible, float("-inf"))


def _visible(rows: Tensor, columns: Tensor, pattern: AttentionPattern) -> Tensor:
    """rows (r,), columns (c,): places in the sequence → (r, c) bool."""
    assert pattern.window is not None
    near = (rows[:, None] - columns).abs() <= pattern.window
    if not pattern.global_tokens:
        return near
    return near | (columns < pattern.global_tokens) | (rows[:, None] < pattern.global_tokens)


def _take(x: Tensor, columns: Columns) -> Tensor:
    """The columns of x (n, H, l, K), (n, l) or (l,): a view where they are neighbours."""
    at = 2 if x.dim() == 4 else x.dim() - 1
    first, rest = columns
    taken = x.narrow(at, rest.start, rest.stop - rest.start)
    return torch.cat([x.narrow(at, 0, first), taken], at) if first else taken


def _add(total: Tensor, columns: Columns, part: Tensor) -> None:
    """The opposite of `_take`: part (n, H, c, K) is added where it was taken."""
    first, rest = columns
    total[:, :, rest] += part[:, :, first:]
    if first:
        total[:, :, :first] += part[:, :, :first]


def _random_state(like: Tensor) -> Tensor:
    return torch.cuda.get_rng_state(like.device) if like.is_cuda else torch.get_rng_state()


def _set_random_state(like: Tensor, state: Tensor) -> None:
    if like.is_cuda:
        torch.cuda.set_rng_state(state, like.device)
    else:
        torch.set_rng_state(state)
