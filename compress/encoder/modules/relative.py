"""Relative positions: numbers added to attention scores that depend on how far apart two tokens stand."""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from compress.encoder.config.relative import Disentangled, RelativeBias


class ScoreBias(Protocol):
    """What one layer adds to its scores before the softmax. scale: what its queries are multiplied by before."""

    scale: float

    def bias(self, q: Tensor, k: Tensor, longest: int) -> Tensor:
        """q (scaled), k (n, H, l, K) of whole sequences → broadcast to (n, H, l, l), in q's dtype.

        longest: of the batch's sequences: what depends on distances alone is made once for all of them.
        """
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
    """The bias of one forward pass: made for the longest sequence, and cut for shorter ones."""

    scale = 1.0

    def __init__(self, table: Tensor, config: RelativeBias) -> None:
        self.table, self.config = table, config
        self._made: Tensor | None = None

    def bias(self, q: Tensor, k: Tensor, longest: int) -> Tensor:
        """(1, H, l, l)"""
        if self._made is None or (not torch.compiler.is_exporting() and self._made.shape[2] < longest):
            steps = torch.arange(longest, device=self.table.device)
            buckets = number_buckets(steps[None, :] - steps[:, None], self.config)
            self._made = F.embedding(buckets, self.table).permute(2, 0, 1)[None].contiguous()
        length = q.shape[2]
        return self._made[:, :, :length, :length].to(q.dtype)


# --- disentangled attention -------------------------------------------------------------------------------------


class DistanceTable(nn.Module):
    """weight (2 * span, D): a vector for each bucket of distances, and the norm that stands after it."""

    def __init__(self, config: Disentangled, norm: nn.LayerNorm | None, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * config.span, hidden))
        self.norm = norm

    def forward(self) -> Tensor:
        return self.weight if self.norm is None else self.norm(self.weight)


def number_distances(distance: Tensor, config: Disentangled) -> Tensor:
    """The table's row of each distance (..) = query's place - key's place, int64, as DeBERTa-v2 numbers them."""
    found = distance
    if config.max_distance is not None:
        middle = config.span // 2
        away = torch.where(distance.abs() < middle, middle - 1, distance.abs())
        # In fp32 and in this order of operations, so that distances fall into the buckets of transformers' classes.
        most = torch.log(torch.tensor((config.max_distance - 1) / middle))
        log = torch.ceil(torch.log(away / middle) / most * (middle - 1)) + middle
        found = torch.where(away <= middle, distance.to(log.dtype), log * distance.sign()).long()
    return (found + config.span).clamp(0, 2 * config.span - 1)


class Projects(Protocol):
    """A layer's attention, which projects vectors of distances as it does tokens."""

    heads: int

    def project_distances(self, x: Tensor) -> tuple[Tensor, Tensor]: ...


class DistanceBias:
    """What one layer adds to its scores: the products of queries with the keys of distances (c2p) and of keys with the
    queries of distances (p2c), each divided, as q kᵀ is, by the root of K times their number."""

    def __init__(self, rows: Tensor, attention: Projects, config: Disentangled) -> None:
        self.rows, self.attention, self.config = rows, attention, config
        self.scale = (1 + config.terms) ** -0.5
        self._made: tuple[Tensor, Tensor] | None = None

    def bias(self, q: Tensor, k: Tensor, longest: int) -> Tensor:
        """(n, H, l, l)"""
        if self._made is None or (not torch.compiler.is_exporting() and self._made[0].shape[1] < 2 * longest):
            self._made = self._project(longest, q.dtype)
        falling, rising = self._made
        length = q.shape[2]
        start = falling.shape[1] // 2 - length
        total: Tensor | None = None
        if self.config.content_to_position:
            total = _skew(q @ falling[:, start : start + 2 * length].mT)
        if self.config.position_to_content:
            seen = _skew(k @ rising[:, start : start + 2 * length].mT).mT * self.scale
            total = seen if total is None else total + seen
        assert total is not None
        return total * q.shape[-1] ** -0.5

    def _project(self, longest: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Keys of the distances longest - 1 .. -longest and queries of -longest + 1 .. longest: (H, 2 * longest, K)."""
        distance = longest - torch.arange(2 * longest + 1, device=self.rows.device)
        at = number_distances(distance, self.config)
        if not torch.compiler.is_exporting() and 2 * longest < len(self.rows):  # fewer rows than the whole table
            q, k = self.attention.project_distances(self.rows[at])
        else:
            q, k = (part[at] for part in self.attention.project_distances(self.rows))
        q, k = (part.unflatten(-1, (self.attention.heads, -1)).transpose(0, 1).to(dtype) for part in (q, k))
        return k[:, 1:], q.flip(1)[:, 1:]


def _skew(x: Tensor) -> Tensor:
    """x (.., l, 2l), whose column says how far apart row and column stand → (.., l, l), a view: element (i, j) is
    x[i, j - i + l - 1]."""
    length = x.shape[-2]
    wide = 2 * length - 1
    return x.flatten(-2)[..., length - 1 : length - 1 + length * wide].unflatten(-1, (length, wide))[..., :length]
