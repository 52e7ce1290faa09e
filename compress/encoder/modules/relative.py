"""Relative positions: numbers added to attention scores that depend on how far apart two tokens stand."""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.encoder.config.relative import RelativeBias


class ScoreBias(Protocol):
    """What one layer adds to its scores before the softmax."""

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        """q, k (n, H, l, K) of whole sequences → broadcast to (n, H, l, l), in q's dtype."""
        ...


class BiasTable(nn.Module):
    """weight (buckets, H): the number of each bucket of distances for each head."""

    def __init__(self, buckets: int, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(buckets, heads))


def number_buckets(distance: Tensor, config: RelativeBias) -> Tensor:
    """The bucket of each distance (..) = column - row, int64, as T5 and MPNet number them."""
    half = config.buckets // 2
    exact = half // 2
    away = distance.abs()
    # In fp32 and in this order of operations, so that every distance falls into the bucket that transformers gives it.
    log = torch.log(away.clamp(min=1).float() / exact) / math.log(config.max_distance / exact)
    far = (exact + (log * (half - exact)).long()).clamp(max=half - 1)
    return torch.where(distance > 0, half, 0) + torch.where(away < exact, away, far)


class TableBias:
    """The bias of one forward pass: made for the longest sequence that asked so far, and cut for shorter ones."""

    def __init__(self, table: Tensor, config: RelativeBias) -> None:
        self.table, self.config = table, config
        self._made: Tensor | None = None

    def bias(self, q: Tensor, k: Tensor) -> Tensor:
        """(1, H, l, l)"""
        length = q.shape[2]
        if self._made is None or self._made.shape[2] < length:
            steps = torch.arange(length, device=self.table.device)
            buckets = number_buckets(steps[None, :] - steps[:, None], self.config)
            self._made = F.embedding(buckets, self.table).permute(2, 0, 1)[None].contiguous()
        return self._made[:, :, :length, :length].to(q.dtype)
