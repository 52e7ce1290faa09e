"""Token dropping: after the attention of some layers only the tokens that receive most of it go on (PoWER-BERT,
2001.08950). The first token always does, which the head reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.token_dropping import ALL, count_kept
from compress.encoder.modules.blocks import BlockMaps
from compress.encoder.modules.layers import LayerTrace
from compress.encoder.modules.layout import PackedLayout


@dataclass(frozen=True)
class KeptTokens:
    """x: (T', D) states of the tokens that are left after all layers.  layout: of these.  choices: one for each layer
    that drops tokens."""

    x: Tensor
    layout: PackedLayout
    choices: Sequence[TokenChoice]

    def find_margins(self) -> Tensor:
        """(B,) how near the choice of any layer came to another one, in shares of attention."""
        return torch.stack([choice.find_margins() for choice in self.choices]).amin(0)


class TokenChoice:
    """Of the tokens that a layer's attention leaves. before: the layout of those that it reads.  counts: tokens of each
    text that go on.  trace: of the layer.  kept: the layout of these tokens, once `take` was called."""

    def __init__(self, before: PackedLayout, counts: Sequence[int]) -> None:
        self.before, self.counts, self.trace = before, counts, LayerTrace(wants_maps=True)
        self.kept = before
        self._received = self._order = torch.empty(0)

    def take(self, x: Tensor) -> Tensor:
        """(T, D) → (T', D)"""
        assert self.trace.maps is not None
        with torch.no_grad():  # which tokens go on is no function that could be learned
            self._received = BlockMaps.of(self.trace.maps.probabilities).sum_received()
            self.kept, places, self._order = self.before.keep(self._received, self.counts)
        self.trace.maps = None
        return x.index_select(0, places)

    def find_margins(self) -> Tensor:
        """(B,)"""
        return self.before.find_margins(self._received, self.counts, self._order)


def compute_kept_tokens(config: EncoderConfig, layers: nn.ModuleList, x: Tensor, layout: PackedLayout) -> KeptTokens:
    """All layers, without the final norm. x: (T, D) embeddings."""
    assert config.kept_tokens is not None
    lengths, before, choices = layout.lengths, ALL, list[TokenChoice]()
    for group, percent in zip(config.groups, config.kept_tokens, strict=True):
        layer: Any = layers[group]
        if percent == before:
            x = layer(x, layout, LayerTrace())
            continue
        choice = TokenChoice(layout, [count_kept(length, percent) for length in lengths])
        x = layer(x, layout, choice.trace, between=choice.take)
        choices.append(choice)
        layout, before = choice.kept, percent
    return KeptTokens(x, layout, choices)


def pack_padded(input_ids: Tensor, mask: Tensor | None, segment_ids: Tensor | None) -> Batch:
    """(B, L) ids and their mask as a packed batch, on their device."""
    real = torch.ones_like(input_ids, dtype=torch.bool) if mask is None else mask.to(torch.bool)
    lengths, places = real.sum(1), torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    segments = torch.zeros_like(input_ids) if segment_ids is None else segment_ids
    return Batch(
        input_ids[real], segments[real], places[real], torch.cat((lengths.new_zeros(1), lengths.cumsum(0))),
        int(lengths.max()), torch.arange(len(lengths)),
    )  # fmt: skip
