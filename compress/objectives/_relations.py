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
        left, right = (x.flatten(2).unflatten(2, (heads, -1)) for x in (left, right))
    scores = left.transpose(1, 2) @ right.permute(0, 2, 3, 1)
    return (scores * left.shape[-1] ** -0.5).log_softmax(-1)


def divergence(
    batch: Batch, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], heads: int | None = None
) -> Tensor:
    """KL(teacher ‖ student) of two relations, mean over heads and real query tokens; each (T, H, K)."""
    total = ours[0].new_zeros(())
    for tokens, count, length in runs(batch):
        (left, right), (their_left, their_right) = (
            [x[tokens].unflatten(0, (count, length)) for x in part] for part in (ours, theirs)
        )
        p, q = log_relation(left, right, heads), log_relation(their_left, their_right, heads)
        total = total + F.kl_div(p, q, log_target=True, reduction="sum") / p.shape[1]
    return total / batch.tokens
