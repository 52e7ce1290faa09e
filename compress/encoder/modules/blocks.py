"""Neighbouring sequences as one tensor (n, H, L, K), so that one product serves many sequences.

What is computed sequence by sequence costs a GPU a launch each. Sequences of one length are a block as they lie; on a
GPU those of like length are one too, padded to the longest.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor

from compress.contracts.grid import divide, has_padding


@dataclass(frozen=True)
class Padding:
    """Where a padded block is read from and written to.

    sources: (n·L,) int32, the block's token in each place; padding repeats the last token of its sequence.  places:
    (t,) int32, the place of each token.  is_padding: (n, L) bool.  real_rows: (n,) bool, false on sequences that are
    padding as a whole: they attend to themselves, and no loss reads their maps; None: there are none.
    """

    sources: Tensor
    places: Tensor
    is_padding: Tensor
    real_rows: Tensor | None = None


@dataclass(frozen=True)
class Block:
    """Neighbouring sequences. lengths: of each.  padding: None where all are of one length.  fixed_length: L, where it
    is not that of the longest."""

    lengths: Sequence[int]
    padding: Padding | None = None
    fixed_length: int | None = None

    @functools.cached_property
    def length(self) -> int:
        """L, of the longest."""
        return max(self.lengths, default=0) if self.fixed_length is None else self.fixed_length

    @functools.cached_property
    def tokens(self) -> int:
        """t, of all its sequences."""
        return sum(self.lengths)

    @functools.cached_property
    def padded_pairs(self) -> Tensor | None:
        """(n, 1, L, L) bool: one of the two tokens is padding; None where there is none."""
        if self.padding is None:
            return None
        with torch.inference_mode(False):  # kept for all that read this batch
            padding = self.padding.is_padding
            if self.padding.real_rows is not None:
                padding = padding | ~self.padding.real_rows[:, None]
            return padding[:, None, :, None] | padding[:, None, None]

    @functools.cached_property
    def seen(self) -> Tensor | None:
        """(n, 1, 1, L) bool, false on padding; None where there is none."""
        if self.padding is None:
            return None
        with torch.inference_mode(False):
            return ~self.padding.is_padding[:, None, None]

    def spread(self, x: Tensor, *, heads_first: bool = False) -> Tensor:
        """(t, H, K), the block's tokens end to end → (n, H, L, K), a view where all sequences have one length.

        What padding holds means nothing: it is to be masked.  heads_first: how padded ones lie in memory, so that
        products over sequences and heads need no copy.
        """
        shape = (len(self.lengths), self.length)
        if self.padding is None:
            return x.unflatten(0, shape).transpose(1, 2)
        if not heads_first:
            return _pad(x, 0, self.padding).unflatten(0, shape).transpose(1, 2)
        return _pad(x.transpose(0, 1), 1, self.padding).unflatten(1, shape).transpose(0, 1)

    def join(self, x: Tensor, *, heads_first: bool = False) -> Tensor:
        """(n, H, L, K) → (t, H, K), its padding dropped.  heads_first: how x lies in memory."""
        if self.padding is None:
            n, heads, length, width = x.shape  # of a teacher's kept maps there are no values: their width is 0
            return x.transpose(1, 2).reshape(n * length, heads, width)  # without a copy for what SDPA returns on CPU
        if not heads_first:
            return x.transpose(1, 2).flatten(0, 1).index_select(0, self.padding.places)
        return x.transpose(0, 1).flatten(1, 2).index_select(1, self.padding.places).transpose(0, 1)


def build_blocks(lengths: Sequence[int], grid: Mapping[str, Tensor] | None) -> list[Block]:
    """Of all sequences; grid: what `lay_out` gives, on the device, where those of like length are padded."""
    blocks, place, token = [], 0, 0
    for own in divide(lengths, padded=grid is not None):
        padding = None
        if grid is not None and has_padding(own):
            places, tokens = slice(place, place + len(own) * max(own)), slice(token, token + sum(own))
            place, token = places.stop, tokens.stop
            is_padding = grid["is_padding"][places].view(len(own), max(own))
            padding = Padding(grid["sources"][places], grid["places"][tokens], is_padding)
        blocks.append(Block(own, padding))
    return blocks


def build_fixed_block(lengths: Sequence[int], length: int, real_rows: Tensor, grid: Mapping[str, Tensor]) -> Block:
    """Of all sequences, padded to `length`; grid: what `lay_out` gives with it. Of `lengths` only their number and
    their sum count."""
    is_padding = grid["is_padding"].view(len(lengths), length)
    return Block(lengths, Padding(grid["sources"], grid["places"], is_padding, real_rows), length)


def _pad(x: Tensor, dim: int, padding: Padding) -> Tensor:
    """t → n·L in this dimension."""
    padded: Tensor = _Pad.apply(x, dim, padding.sources, padding.places)  # pyright: ignore[reportAssignmentType]
    return padded


class _Pad(torch.autograd.Function):
    """Padding has no gradient: what is to be added up over the places of a token is then read from one."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dim: int, sources: Tensor, places: Tensor) -> Tensor:
        ctx.save_for_backward(places)
        ctx.dim = dim
        return x.index_select(dim, sources)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (places,) = ctx.saved_tensors
        return gradient.index_select(ctx.dim, places), None, None, None


def spread(blocks: Sequence[Block], *tensors: Tensor, heads_first: bool = False) -> Iterator[tuple[Any, ...]]:
    """Each block with its part of tensors (T, H, K) of all tokens, each (n, H, L, K)."""
    sizes = [block.tokens for block in blocks]
    parts = [x.split_with_sizes(sizes) for x in tensors]
    for block, *own in zip(blocks, *parts, strict=True):
        yield block, *(block.spread(x, heads_first=heads_first) for x in own)


class BlockMaps(Sequence[Tensor]):
    """B maps (H, l, l), one a sequence, as views of one tensor (n, H, L, L) for each of `layout`'s blocks."""

    def __init__(self, maps: Sequence[Tensor], layout: Sequence[Block]) -> None:
        self._maps, self._layout = maps, layout

    @classmethod
    def of(cls, maps: Sequence[Tensor]) -> BlockMaps:
        """Any maps; those that lie one by one are blocks of one."""
        return maps if isinstance(maps, cls) else cls([x[None] for x in maps], [Block([x.shape[-1]]) for x in maps])

    @functools.cached_property
    def blocks(self) -> list[Tensor]:
        """(n, H, L, L) of each block, 0 on padding."""
        masks = [block.padded_pairs for block in self._layout]
        return [x if mask is None else x.masked_fill(mask, 0.0) for x, mask in zip(self._maps, masks, strict=True)]

    def sum_received(self) -> Tensor:
        """(T,) fp32: of probabilities, what each token receives from all tokens of its sequence, on average over the
        heads; 1 on average over the tokens."""
        found = []
        for maps, block in zip(self.blocks, self._layout, strict=True):
            received = maps.float().sum((1, 2)).flatten() / maps.shape[1]
            found.append(received if block.padding is None else received.index_select(0, block.padding.places))
        return torch.cat(found)

    def apply(self, function: Callable[[Tensor], Tensor]) -> BlockMaps:
        """`function` of each block's tensor."""
        return BlockMaps([function(x) for x in self._maps], self._layout)

    def __len__(self) -> int:
        return sum(len(block.lengths) for block in self._layout)

    def __iter__(self) -> Iterator[Tensor]:
        for maps, block in zip(self._maps, self._layout, strict=True):
            for x, length in zip(maps.unbind(0), block.lengths, strict=True):
                yield x[:, :length, :length]

    @overload
    def __getitem__(self, index: int) -> Tensor: ...
    @overload
    def __getitem__(self, index: slice) -> list[Tensor]: ...
    def __getitem__(self, index: int | slice) -> Tensor | list[Tensor]:
        return list(self)[index]
