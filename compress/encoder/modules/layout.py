"""How sequences lie in a tensor, and how attention runs over them.

Two layouts. `PackedLayout`: real tokens only, (T, ..), sequences end to end. `PaddedLayout`: (B, L, ..) with a mask,
for export, tracing and structural pruning. The encoder's own lines are the same for both: what differs is here.

On CPU packed attention takes runs of neighbouring sequences of one length as one batched product over views: measured
faster than grouping by copy and 2.7 times faster than padding. Rows sorted by length have the fewest runs.
On GPU it is one variable-length kernel where that applies, else SDPA over a padded copy; explicit maps are computed
over blocks of sequences of like length (`blocks`).
Windowed attention runs over blocks of the same runs or of the padded copy, linear in the length; `PaddedLayout` masks.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch
from compress.contracts.grid import lay_out
from compress.contracts.host import HostValues
from compress.contracts.parcel import Parcel
from compress.encoder.config.heads import Pooling
from compress.encoder.modules.attention import attend_explicitly, attention
from compress.encoder.modules.blocks import Block, BlockMaps, build_blocks, build_fixed_block, spread
from compress.encoder.modules.pattern import FULL, AttentionPattern
from compress.encoder.modules.relative import ScoreBias
from compress.encoder.modules.varlen import attend_varlen, supports_varlen
from compress.encoder.modules.windows import attend_in_windows, build_window_mask


@dataclass
class AttentionMaps:
    """Explicit maps of one layer: B tensors (H, l, l) each, before dropout. scores: before the softmax."""

    probabilities: Sequence[Tensor]
    scores: Sequence[Tensor]


class Layout(Protocol):
    """q, k, v are (.., H, K) with the layout's leading dimensions; the context has the same shape."""

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> Tensor:
        """softmax(q kᵀ / √K) v within each sequence, over what `pattern` lets each token see.

        scores: what is added to q kᵀ / √K; only where every token sees every other.
        """
        ...

    def attend_explicitly(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> tuple[Tensor, AttentionMaps]:
        """The same, step by step, with its maps."""
        ...

    def attend_first(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        """What the first token of each sequence sees of all: q (B, H, K), k and v as in `attend` → (B, H, K)."""
        ...

    def first(self, x: Tensor) -> Tensor:
        """The first token of each sequence: (B, ..)."""
        ...

    def replace_first(self, x: Tensor, first: Tensor) -> Tensor:
        """A copy of x with `first` (B, ..) in the place of each sequence's first token."""
        ...

    def pool(self, x: Tensor, pooling: Pooling) -> Tensor:
        """What stands for each sequence: (B, D). weighted_mean: the first token counts once, the second twice, ..."""
        ...


class PackedLayout:
    """Sequences end to end: cu_seqlens (B+1,) as in `Batch`. values: of the batch on the host, where lengths are read
    without waiting for the device.  real_rows: of a batch that was padded to a fixed size: what is computed depends on
    B, T and max_length, and not on single lengths."""

    def __init__(
        self,
        cu_seqlens: Tensor,
        max_length: int,
        values: HostValues | None = None,
        grid: Mapping[str, Tensor] | None = None,
        real_rows: Tensor | None = None,
    ) -> None:
        self.cu_seqlens = cu_seqlens
        self.max_length = max_length
        self._values = HostValues({"cu_seqlens": cu_seqlens}) if values is None else values
        self._grid = grid
        self._real_rows = real_rows
        self._blocks: list[Block] | None = None

    @classmethod
    def of(cls, batch: Batch) -> PackedLayout:
        """As the sequences of a batch lie; one for all that read it."""
        if "layout" not in batch.memo:
            batch.memo["layout"] = cls(
                batch.cu_seqlens, batch.max_length, batch.on_host.values, batch.grid, batch.real_rows
            )
        return batch.memo["layout"]

    def take(self, kept: Tensor) -> tuple[PackedLayout, Tensor]:
        """(the layout of some sequences, in their order; (T,) bool: their tokens). kept: (B,) bool."""
        lengths = torch.tensor(self.lengths, dtype=self.cu_seqlens.dtype)[kept.cpu()]
        bounds = torch.cat((lengths.new_zeros(1), lengths.cumsum(0, dtype=lengths.dtype)))
        values = HostValues({"cu_seqlens": bounds})
        layout = PackedLayout(bounds.to(self.cu_seqlens.device), int(lengths.max()), values)
        tokens = torch.repeat_interleave(kept, self.cu_seqlens.diff(), output_size=sum(self.lengths))
        return layout, tokens

    def keep(self, scores: Tensor, counts: Sequence[int]) -> tuple[PackedLayout, Tensor, Tensor]:
        """(the layout of the tokens with the largest scores, (T',) int64 their places in the order of the text, (T,)
        the places of all tokens, sequence by sequence from the largest score on).

        scores: (T,), at most the number of tokens of a sequence.  counts: tokens of each sequence that stay, its first
        token among them in any case.
        """
        device, most = scores.device, self.max_length + 1
        scores = scores.double().index_fill(0, self.cu_seqlens[:-1], most)
        order = (self._rows(scores) * (2.0 * most) - scores).argsort()
        starts, ends = (np.concatenate(([0], np.cumsum(n))) for n in (self.lengths, counts))
        chosen = np.concatenate([np.arange(start, start + n) for start, n in zip(starts, counts, strict=False)])
        places = order.index_select(0, torch.from_numpy(chosen).to(device)).sort().values
        bounds = torch.from_numpy(ends).to(self.cu_seqlens.dtype)
        return PackedLayout(bounds.to(device), max(counts), HostValues({"cu_seqlens": bounds})), places, order

    def find_margins(self, scores: Tensor, counts: Sequence[int], order: Tensor) -> Tensor:
        """(B,) by how much the score of the last token that `keep` keeps of a sequence exceeds that of the next."""
        pairs = zip(counts, self.lengths, strict=True)
        whole = torch.tensor([n == length for n, length in pairs], device=scores.device)
        lasts = self.cu_seqlens[:-1] + torch.tensor(counts, device=scores.device) - 1
        ordered = scores[order]
        margins = ordered[lasts] - ordered[(lasts + 1).clamp(max=len(order) - 1)]
        return margins.masked_fill(whole, torch.inf)

    @property
    def pads(self) -> bool:
        """Whether blocks hold sequences of like length, and not of one length alone."""
        return self.cu_seqlens.is_cuda or self.is_fixed

    @property
    def is_fixed(self) -> bool:
        """Whether it is of a batch that was padded to a fixed size."""
        return self._real_rows is not None

    @functools.cached_property
    def lengths(self) -> list[int]:
        """Tokens of each sequence."""
        return np.diff(self._values["cu_seqlens"]).tolist()

    @property
    def grid(self) -> Mapping[str, Tensor]:
        """What `lay_out` gives, on the device: with the batch, or copied there now."""
        if self._grid is None:
            with torch.inference_mode(False):  # kept for all that read this batch
                laid_out = lay_out(self.lengths, self.max_length if self.is_fixed else None)
                arrays = {name: torch.from_numpy(x) for name, x in laid_out.items()}
                self._grid = Parcel({"": arrays}, pinned=self.cu_seqlens.is_cuda).to(self.cu_seqlens.device)[""]
        return self._grid

    @property
    def blocks(self) -> list[Block]:
        """Neighbouring sequences that one product serves: on CPU the runs of one length."""
        if self._blocks is None and self._real_rows is not None:
            lengths = np.diff(self._values.inspect("cu_seqlens")).tolist()
            self._blocks = [build_fixed_block(lengths, self.max_length, self._real_rows, self.grid)]
        if self._blocks is None:
            self._blocks = build_blocks(self.lengths, self.grid if self.pads else None)
        return self._blocks

    def count_pairs(self) -> int:
        """Pairs of tokens of one sequence; of a batch that was padded to a fixed size, of all that are computed."""
        if self.is_fixed:
            return (len(self.cu_seqlens) - 1) * self.max_length**2
        return sum(length * length for length in self.lengths)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> Tensor:
        bounds = None if scores is not None else self.find_bounds(q.dtype, q.shape[-1], pattern)
        if bounds is not None:
            return attend_varlen(q, k, v, bounds, self.max_length, dropout, pattern)
        return self._attend_blocks(q, k, v, dropout, pattern, scores)

    def find_bounds(self, dtype: torch.dtype, width: int, pattern: AttentionPattern) -> Tensor | None:
        """(B+1,) int32 for `attend_varlen`, where it computes queries of this kind and width; else None."""
        return self.grid["bounds"] if self.pads and supports_varlen(dtype, width, pattern) else None

    def attend_explicitly(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> tuple[Tensor, AttentionMaps]:
        contexts, probabilities, found = [], [], []
        for block, q_block, k_block, v_block in spread(self.blocks, q, k, v, heads_first=True):
            hidden = _build_hidden(block, pattern, q.device)
            bias = None if scores is None else scores.bias(q_block, k_block, self.max_length)
            context, shares, raw = attend_explicitly(q_block, k_block, v_block, hidden, dropout, bias)
            contexts.append(block.join(context, heads_first=True))
            probabilities.append(shares)
            found.append(raw)
        maps = AttentionMaps(BlockMaps(probabilities, self.blocks), BlockMaps(found, self.blocks))
        return _join_contexts(contexts), maps

    def attend_first(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        contexts, counts = [], [len(block.lengths) for block in self.blocks]
        with torch.autocast("cpu", enabled=False):
            for (block, k_block, v_block), first in zip(spread(self.blocks, k, v), q.split(counts), strict=True):
                contexts.append(attention(first[:, :, None], k_block, v_block, dropout, block.seen).squeeze(2))
        return _join_contexts(contexts)

    def first(self, x: Tensor) -> Tensor:
        return x[self.cu_seqlens[:-1]]

    def replace_first(self, x: Tensor, first: Tensor) -> Tensor:
        return x.index_copy(0, self.cu_seqlens[:-1], first)

    def pool(self, x: Tensor, pooling: Pooling) -> Tensor:
        if pooling == "first":
            return self.first(x)
        if pooling == "last":
            return x.index_select(0, self.cu_seqlens[1:] - 1)
        lengths, rows = self.cu_seqlens.diff(), self._rows(x)
        if pooling == "max":
            lowest = x.new_full((len(lengths), x.shape[1]), -torch.inf)
            return lowest.scatter_reduce(0, rows.long()[:, None].expand_as(x), x, "amax")
        if pooling == "weighted_mean":
            places = torch.arange(1, x.shape[0] + 1, device=x.device) - self.cu_seqlens[:-1].index_select(0, rows)
            x, lengths = x * places[:, None].to(x.dtype), lengths * (lengths + 1) // 2
        sums = x.new_zeros(len(lengths), x.shape[1]).index_add(0, rows, x)
        if not self.is_fixed and 0 in self.lengths:  # a static model may read nothing of a text
            lengths = lengths.clamp(min=1)
        return sums / lengths[:, None]

    def _rows(self, x: Tensor) -> Tensor:
        """(T,) the sequence of each token."""
        if self.pads:
            return self.grid["rows"]
        lengths = self.cu_seqlens.diff()
        return torch.repeat_interleave(torch.arange(len(lengths), device=x.device), lengths, output_size=x.shape[0])

    def _attend_blocks(
        self, q: Tensor, k: Tensor, v: Tensor, dropout: float, pattern: AttentionPattern, scores: ScoreBias | None
    ) -> Tensor:
        contexts = []
        with torch.autocast("cpu", enabled=False):  # the precision of each product is chosen for it
            for block, q_block, k_block, v_block in spread(self.blocks, q, k, v):
                if pattern.is_full(block.length):
                    bias = None if scores is None else scores.bias(q_block, k_block, self.max_length)
                    context = attention(q_block, k_block, v_block, dropout, _join(block.seen, bias))
                else:
                    real = None if block.seen is None else block.seen[:, 0, 0]
                    context = attend_in_windows(q_block, k_block, v_block, pattern, dropout, real)
                contexts.append(block.join(context))
        return _join_contexts(contexts)


class PaddedLayout:
    """(B, L, ..) with `mask` (B, L), non-zero on real tokens; None when all are real."""

    def __init__(self, mask: Tensor | None) -> None:
        self.mask = None if mask is None else mask.to(torch.bool)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> Tensor:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        bias = None if scores is None else scores.bias(q, k, q.shape[2])
        seen = _join(_build_visible(self.mask, q.shape[2], pattern, q.device), bias)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, dropout_p=dropout).transpose(1, 2)

    def attend_explicitly(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        dropout: float,
        pattern: AttentionPattern = FULL,
        scores: ScoreBias | None = None,
    ) -> tuple[Tensor, AttentionMaps]:
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        visible = _build_visible(self.mask, q.shape[2], pattern, q.device)
        hidden = None if visible is None else ~visible
        bias = None if scores is None else scores.bias(q, k, q.shape[2])
        context, probabilities, found = attend_explicitly(q, k, v, hidden, dropout, bias)
        maps = AttentionMaps(self._real(probabilities), self._real(found))
        return context.transpose(1, 2), maps

    def attend_first(self, q: Tensor, k: Tensor, v: Tensor, *, dropout: float) -> Tensor:
        seen = None if self.mask is None else self.mask[:, None, None, :]
        k, v = k.transpose(1, 2), v.transpose(1, 2)
        return F.scaled_dot_product_attention(q[:, :, None], k, v, attn_mask=seen, dropout_p=dropout).squeeze(2)

    def first(self, x: Tensor) -> Tensor:
        return x[:, 0]

    def replace_first(self, x: Tensor, first: Tensor) -> Tensor:
        return torch.cat([first[:, None], x[:, 1:]], 1)

    def pool(self, x: Tensor, pooling: Pooling) -> Tensor:
        if pooling == "first":
            return self.first(x)
        if self.mask is None and pooling in ("mean", "max", "last"):
            return x.mean(1) if pooling == "mean" else x.amax(1) if pooling == "max" else x[:, -1]
        real = x.new_ones(x.shape[:2], dtype=torch.bool) if self.mask is None else self.mask.bool()
        if pooling == "max":
            return x.masked_fill(~real[..., None], -torch.inf).amax(1)
        if pooling == "last":
            return x[torch.arange(len(x), device=x.device), real.sum(1) - 1]
        weights = (real.cumsum(1) * real if pooling == "weighted_mean" else real)[..., None]
        return (x * weights).sum(1) / weights.sum(1)

    def _real(self, maps: Tensor) -> list[Tensor]:
        """Each sequence's map without its padding."""
        if self.mask is None:
            return list(maps.unbind(0))
        return [m[:, keep][:, :, keep] for m, keep in zip(maps.unbind(0), self.mask.unbind(0), strict=True)]


def _build_visible(real: Tensor | None, length: int, pattern: AttentionPattern, device: torch.device) -> Tensor | None:
    """Bool, broadcast to (n, H, L, L); None: all see all. By a window, padding sees itself too: a row that sees nothing
    gives NaN. real: (n, L), false on padding."""
    keys = None if real is None else real[:, None, None, :]
    if pattern.window is None:  # whether the window covers `length` is not asked: a traced length is not known
        return keys
    visible = build_window_mask(length, pattern, device)
    return visible if keys is None else visible & keys | torch.eye(length, dtype=torch.bool, device=device)


def _build_hidden(block: Block, pattern: AttentionPattern, device: torch.device) -> Tensor | None:
    """The opposite, of a block's tokens."""
    is_padding = None if block.padding is None else block.padding.is_padding
    if pattern.is_full(block.length):
        return None if is_padding is None else is_padding[:, None, None, :]
    visible = _build_visible(None if is_padding is None else ~is_padding, block.length, pattern, device)
    return None if visible is None else ~visible


def _join(visible: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """What SDPA takes as a mask: bool, or the bias of the scores with -inf where a token is not seen."""
    if bias is None:
        return visible
    return bias if visible is None else bias.masked_fill(~visible, float("-inf"))


def _join_contexts(contexts: list[Tensor]) -> Tensor:
    """(T, H, K) of those of the blocks."""
    return contexts[0] if len(contexts) == 1 else torch.cat(contexts)
