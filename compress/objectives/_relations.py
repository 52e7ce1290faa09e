"""Self-attention relations (MiniLM): softmax(X Xᵀ/√d) of queries, keys or values, compared row by row."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.errors import UserError
from compress.objectives._common import wide
from compress.objectives._layers import runs

ROLES = ("queries", "keys", "values")


def projected(output: EncoderOutput, role: str, layer: int, kind: str) -> Tensor:
    """(T, H, K) queries, keys or values of a layer."""
    kept = getattr(output, role)
    if kept is None:
        raise UserError(f"the model's output has no {role}", where=f"objective {kind}")
    return wide(kept[layer])


def log_relation(left: Tensor, right: Tensor, heads: int | None = None) -> Tensor:
    """log softmax(left rightᵀ/√d) per head: (n, l, H, K) each → (n, H, l, l).

    heads: split the concatenated heads anew into so many (MiniLMv2's relation heads).
    """
    if heads is not None:
        (q, k), (their_q, their_k) = (
            [x[tokens].unflatten(0, (count, length)) for x in part] for part in (ours, theirs)
        )
        left, right = log_relation(q, k, heads), log_relation(their_q, their_k, heads)
        total = total + F.kl_div(left, right, log_target=True, reduction="sum") / left.shape[1]
    return total / batch.tokens
