"""Attention within packed sequences of any lengths, by one kernel for a GPU."""

from __future__ import annotations

import functools
import inspect

import torch
from torch import Tensor

from compress.encoder.modules.pattern import AttentionPattern

WIDEST_HEAD = 192
"""Of wider heads, some GPUs have no backward pass."""


def attend_varlen(
    q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, max_length: int, dropout: float, pattern: AttentionPattern
) -> Tensor:
    """softmax(q kᵀ / √K) v within each sequence, (T, H, K). bounds: (B+1,) int32, where each begins.

    `torch.nn.attention.varlen` calls the same operator, but without dropout, and by way of Python: with its backward
    pass, a call takes the host of an H200 0.7 ms instead of 0.2.
    """
    sides = {} if pattern.window is None else dict.fromkeys(("window_size_left", "window_size_right"), pattern.window)
    attend = torch.ops.aten._flash_attention_forward
    return attend(q, k, v, bounds, bounds, max_length, max_length, dropout, False, False, **sides)[0]


def supports_varlen(dtype: torch.dtype, width: int, pattern: AttentionPattern) -> bool:
    """Whether `attend_varlen` computes queries of this kind and head width on a GPU."""
    fits = dtype in (torch.bfloat16, torch.float16) and width % 8 == 0 and width <= WIDEST_HEAD
    return fits and _has_kernel(pattern)


@functools.cache
def _has_kernel(pattern: AttentionPattern) -> bool:
    """Whether this torch has one for this pattern."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    windowed = "window_size" in inspect.signature(varlen_attn).parameters
    return pattern.window is None or (windowed and not pattern.global_tokens)
