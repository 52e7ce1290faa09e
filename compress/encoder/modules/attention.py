"""Attention over (n, H, l, K) tensors, by the way that is fastest for the device, the length and the precision."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.encoder.modules.dropout import dropout as dropout_of

SHORT = 48
"""Tokens; where products in bf16 on CPU begin to gain more than they cost in conversions."""


def attention(q: Tensor, k: Tensor, v: Tensor, dropout: float, bias: Tensor | None = None) -> Tensor:
    """softmax(q kᵀ / √K + bias) v: q (n, H, l, K), k and v (n, H, m, K) → (n, H, l, K).

    bias: broadcast to (n, H, l, m), in q's dtype; -inf where a token is not seen, and every row sees one at least.
    Measured on CPU with torch 2.13 (12 heads of 64): torch's SDPA is best in fp32. In bf16 its forward is half as fast
    as two plain products from 64 tokens on, and its backward several times slower at any length; short sequences are
    fastest in fp32. With dropout torch has no fused kernel on CPU, and draws its mask slowly.
    """
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
    narrow = q.dtype in (torch.bfloat16, torch.float16)
    if narrow and k.shape[-2] <= SHORT:
        wide = None if bias is None else bias.float()
        return attention(q.float(), k.float(), v.float(), dropout, wide).to(q.dtype)
    if narrow or dropout:
        return _two_products(q, k, v, dropout, bias)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def _two_products(q: Tensor, k: Tensor, v: Tensor, p: float, bias: Tensor | None) -> Tensor:
    """The same as products of matrices; the scores are scaled inside the first one, where the bias is added too."""
    n, heads, rows, width = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    if bias is None:
        bias, beta = q.new_empty(1), 0
    else:
        bias, beta = bias.expand(n, heads, rows, k.shape[1]).flatten(0, 1) if bias.dim() == 4 else bias, 1
    scores = torch.baddbmm(bias, q, k.transpose(1, 2), beta=beta, alpha=width**-0.5)
    return torch.bmm(dropout_of(scores.softmax(-1), p), v).view(n, heads, rows, width)


def attend_explicitly(
    q: Tensor, k: Tensor, v: Tensor, seen: Tensor | None, dropout: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """The same step by step: q, k, v (n, H, l, K) → context, probabilities before dropout, scores.

    seen: bool, broadcast to (n, H, l, l); the others get probability 0, and keep their score.  bias: of the scores,
    broadcast to (n, H, l, l).
    """
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if bias is not None:
        scores = scores + bias
    kept = scores if seen is None else scores.masked_fill(~seen, float("-inf"))
    probabilities = kept.softmax(-1)
    return dropout_of(probabilities, dropout).to(v.dtype) @ v, probabilities, scores
