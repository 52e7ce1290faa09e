"""How sequences lie in a tensor, and how attention runs over them.

Two layouts. `PackedLayout`: real tokens only, (T, ..), sequences end to end. `PaddedLayout`: (B, L, ..) with a mask,
for export, tracing and structural pruning. The encoder's own lines are the same for both: what differs is here.

On CPU packed attention takes runs of neighbouring sequences of one length as one batched product over views: measured
faster than grouping by copy and 2.7 times faster than padding. Rows sorted by length have the fewest runs.
On GPU it is one variable-length kernel where that applies, else SDPA over a padded copy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.encoder.dropout import dropout as dropout_of

_SHORT = 48  # tokens; where products in bf16 begin to gain more than they cost in conversions


@dataclass
class AttentionMaps:
    """Explicit maps of one layer: B tensors (H, l, l) each, before dropout. scores: before the softmax."""

    probabilities: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)


class Layout(Protocol):
    """q, k, v are (.., H, K) with the layout's leading dimensions; the context has the same shape."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        """softmax(q kᵀ / √K) v within each sequence."""
        ...

    def attend_explicitly(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> tuple[Tensor, AttentionMaps]:
        """The same, step by step, with its maps."""
        ...

    def first(self, x: Tensor) -> Tensor:
        """The first token of each sequence: (B, D)."""
        ...


class PackedLayout:
    """Sequences end to end: cu_seqlens (B+1,) as in `Batch`."""

    def __init__(self, cu_seqlens: Tensor, max_length: int) -> None:
        self.cu_seqlens = cu_seqlens
        self.max_length = max_length
        self._runs: list[tuple[int, int]] | None = None
        self._grid: tuple[Tensor, Tensor, Tensor] | None = None

    @property
    def runs(self) -> list[tuple[int, int]]:
        """(sequences, length) of each run of neighbouring sequences of one length."""
        if self._runs is None:
            runs: list[tuple[int, int]] = []
            for length in self.cu_seqlens.diff().tolist():
                if runs and runs[-1][1] == length:
                    runs[-1] = (runs[-1][0] + 1, length)
                else:
                    runs.append((1, length))
            self._runs = runs
        return self._runs

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        if not q.is_cuda:
            return self._attend_runs(q, k, v, dropout)
        if dropout == 0 and q.dtype in (torch.bfloat16, torch.float16) and q.shape[-1] % 8 == 0 and _has_varlen():
            return self._attend_varlen(q, k, v)
        return self._attend_padded(q, k, v, dropout)

    def attend_explicitly(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> tuple[Tensor, AttentionMaps]:
        maps, contexts = AttentionMaps(), []
        for count, length, q_run, k_run, v_run in self._split(q, k, v):
            context, probabilities, scores = _explicit(q_run, k_run, v_run, None, dropout)
            contexts.append(_flatten(context, count * length))
            maps.probabilities.extend(probabilities.unbind(0))
            maps.scores.extend(scores.unbind(0))
        return torch.cat(contexts), maps

    def first(self, x: Tensor) -> Tensor:
        return x[self.cu_seqlens[:-1]]

    def _split(self, q: Tensor, k: Tensor, v: Tensor):
        """(count, length, q, k, v) of each run, tensors as views (count, H, length, K)."""
        sizes = [count * length for count, length in self.runs]
        for (count, length), *parts in zip(self.runs, q.split(sizes), k.split(sizes), v.split(sizes), strict=True):
            yield count, length, *(part.unflatten(0, (count, length)).transpose(1, 2) for part in parts)

    def _attend_runs(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        with torch.autocast("cpu", enabled=False):  # the precision of each product is chosen below
            contexts = [
                _flatten(_attend_cpu(q_run, k_run, v_run, dropout), count * length)
                for count, length, q_run, k_run, v_run in self._split(q, k, v)
            ]
        return contexts[0] if len(contexts) == 1 else torch.cat(contexts)

    def _attend_varlen(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        from torch.nn.attention.varlen import varlen_attn

        bounds = self.cu_seqlens.to(torch.int32)
        context = varlen_attn(q, k, v, bounds, bounds, self.max_length, self.max_length)
        assert isinstance(context, Tensor)
        return context

    def _attend_padded(self, q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
        row, column, mask = self._padding()
        shape = (mask.shape[0], self.max_length, *q.shape[1:])
        padded = (x.new_zeros(shape).index_put((row, column), x).transpose(1, 2) for x in (q, k, v))
        context = F.scaled_dot_product_attention(*padded, attn_mask=mask[:, None, None, :], dropout_p=dropout)
        return context.transpose(1, 2)[row, column]

    def _padding(self) -> tuple[Tensor, Tensor, Tensor]:
        """Row and column of each token in a padded batch, and that batch's mask (B, L)."""
        if self._grid is None:
            lengths, starts = self.cu_seqlens.diff(), self.cu_seqlens[:-1]
            steps = torch.arange(self.max_length, device=lengths.device)
            mask = steps < lengths[:, None]
            row, column = mask.nonzero(as_tuple=True)
            assert starts.shape[0] == mask.shape[0]
            self._grid = (row, column, mask)
        return self._grid


class PaddedLayout:
    """(B, L, ..) with `mask` (B, L), non-zero on real tokens; None when all are real."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = None if mask is None else mask.to(torch.bool)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        mask = None if self.mask is None else self.mask[:, None, None, :]
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout).transpose(1, 2)

    def attend_explicitly(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> tuple[Tensor, AttentionMaps]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        context, probabilities, scores = _explicit(q, k, v, self.mask, dropout)
        maps = AttentionMaps(self._real(probabilities), self._real(scores))
        return context.transpose(1, 2), maps

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def _real(self, maps: Tensor) -> list[Tensor]:
        """Each sequence's map without its padding."""
        if self.mask is None:
            return list(maps.unbind(0))
        return [m[:, keep][:, :, keep] for m, keep in zip(maps.unbind(0), self.mask.unbind(0), strict=True)]


def _attend_cpu(q: Tensor, k: Tensor, v: Tensor, dropout: float) -> Tensor:
    """(n, H, l, K) each, by the way that is fastest for this length and precision on CPU.

    Measured with torch 2.13 (12 heads of 64): torch's SDPA is best in fp32. In bf16 its forward is half as fast as two
    plain products from 64 tokens on, and its backward several times slower at any length; short sequences are
    fastest in fp32. With dropout torch has no fused kernel on CPU, and draws its mask slowly.
    """
    narrow = q.dtype in (torch.bfloat16, torch.float16)
    if narrow and q.shape[-2] <= _SHORT:
        return _attend_cpu(q.float(), k.float(), v.float(), dropout).to(q.dtype)
    if narrow or dropout:
        return _two_products(q, k, v, dropout)
    return F.scaled_dot_product_attention(q, k, v)


def _two_products(q: Tensor, k: Tensor, v: Tensor, p: float) -> Tensor:
    """softmax(q kᵀ / √K) with dropout, times v; the scores are scaled inside the first product."""
    shape = q.shape
    q, k, v = (x.flatten(0, 1) for x in (q, k, v))
    scores = torch.baddbmm(q.new_empty(1), q, k.transpose(1, 2), beta=0, alpha=shape[-1] ** -0.5)
    return torch.bmm(dropout_of(scores.softmax(-1), p), v).view(shape)


def _explicit(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """q, k, v (B, H, L, K) → context, probabilities, scores; masked keys get probability 0."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    seen = scores if mask is None else scores.masked_fill(~mask[:, None, None, :], float("-inf"))
    probabilities = seen.softmax(-1)
    return dropout_of(probabilities, dropout).to(v.dtype) @ v, probabilities, scores


def _flatten(context: Tensor, tokens: int) -> Tensor:
    """(B, H, l, K) → (B·l, H, K); without a copy for what SDPA returns on CPU."""
    return context.transpose(1, 2).reshape(tokens, context.shape[1], context.shape[3])


def _has_varlen() -> bool:
    try:
        import torch.nn.attention.varlen  # noqa: F401
    except ImportError:
        return False
    return True
