"""Attention over (n, H, l, K) tensors, by the way that is fastest for the device, the length and the precision."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.encoder.modules.dropout import dropout as dropout_of

SHORT = 48
"""Tokens; where products in bf16 on CPU begin to gain more than they cost in conversions."""


def attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √K + bias) v: q (n, H, l, K), k and v (n, H, m, K) → (n, H, l, K).

    bias: broadcast to (n, H, l, m), in q's dtype; -inf where a token is not seen, and every row sees one at least. Or
    bool, true where it is seen.
    Measured on CPU with torch 2.13 (12 heads of 64): torch's SDPA is best in fp32. In bf16 its forward is half as fast
    as two plain products from 64 tokens on, and its backward several times slower at any length; short sequences are
    fastest in fp32. With dropout torch has no fused kernel on CPU, and draws its mask slowly.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    if bias is not None and bias.dtype == torch.bool:
        bias = q.new_zeros(bias.shape).masked_fill(~bias, float("-inf"))
    narrow = q.dtype in (torch.bfloat16, torch.float16)
    if narrow and k.shape[-2] <= SHORT:
        wide = None if bias is None else bias.float()
        return attention(q.float(), k.float(), v.float(), dropout, wide).to(q.dtype)
    if narrow or dropout:
        return _two_products(q, k, v, dropout, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _two_products(q: Tensor, k: Tensor, v: Tensor, p: float, bias: Tensor | None) -> Tensor:
    return weigh(dropout_of(normalize(score(q, k, bias)), p), v)


def score(q: Tensor, k: Tensor, bias: Tensor | None = None) -> Tensor:
    """q kᵀ / √K + bias as one product, which scales and adds too: q (n, H, l, K), k (n, H, m, K) → (n, H, l, m).

    bias: broadcast to that. The result lies in memory as q does: heads first or sequences first.
    """
    n, heads, rows, width = q.shape
    heads_first = _lies_heads_first(q)
    if bias is None:
        bias, beta = q.new_empty(1), 0
    else:
        whole = bias.expand(n, heads, rows, k.shape[2])
        bias, beta = _merge(whole, heads_first) if bias.dim() == 4 or heads_first else bias, 1
    q, k = _merge(q, heads_first), _merge(k, heads_first)
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=beta, alpha=width**-0.5)
    return _divide(scores, n, heads, heads_first)


def normalize(scores: Tensor, function: Callable[..., Tensor] = torch.softmax) -> Tensor:
    """softmax, or log_softmax, of the rows of (n, H, l, m), which stay as they lie in memory: torch would copy them."""
    n, heads = scores.shape[:2]
    heads_first = _lies_heads_first(scores)
    return _divide(function(_merge(scores, heads_first), -1), n, heads, heads_first)


def weigh(shares: Tensor, v: Tensor) -> Tensor:
    """shares (n, H, l, m), v (n, H, m, K) → their product (n, H, l, K), which lies in memory as the shares do."""
    n, heads = shares.shape[:2]
    heads_first = _lies_heads_first(shares)
    context = torch.bmm(_merge(shares, heads_first), _merge(v, heads_first))
    return _divide(context, n, heads, heads_first)


def _lies_heads_first(x: Tensor) -> bool:
    return x.stride(1) > x.stride(0)


def _merge(x: Tensor, heads_first: bool) -> Tensor:
    """(n, H, ..) → (n·H, ..), or (H·n, ..)."""
    return (x.transpose(0, 1) if heads_first else x).flatten(0, 1)


def _divide(x: Tensor, n: int, heads: int, heads_first: bool) -> Tensor:
    """(n·H, ..) or (H·n, ..) → (n, H, ..)."""
    return x.unflatten(0, (heads, n)).transpose(0, 1) if heads_first else x.unflatten(0, (n, heads))


def attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, hidden: Tensor | None, dropout: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same step by step: q, k, v (n, H, l, K) → context, probabilities before dropout, scores.

    hidden: bool, broadcast to (n, H, l, l); those get probability 0, and keep their score.  bias: of the scores,
    broadcast to (n, H, l, l).
    """
    scores = score(q, k, bias)
    kept = scores if hidden is None else scores.masked_fill(hidden, float("-inf"))
    probabilities = normalize(kept)
    return weigh(dropout_of(probabilities, dropout).to(v.dtype), v), probabilities, scores
