"""A layer in evaluation mode in two halves, attention and feed-forward, for those that need what lies between them or
compute only one of them anew. Step for step what `EncoderLayer.forward` computes, to the bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from compress.encoder.modules.layers import EncoderLayer, LayerTrace, Position
from compress.encoder.modules.layout import Layout
from compress.encoder.modules.pattern import AttentionPattern
from compress.encoder.reshape.cut import OUTPUTS


def attend(
    layer: EncoderLayer, x: Tensor, layout: Layout, pattern: AttentionPattern, position: Position | None
) -> Tensor:
    """(T, D) what attention adds to x (T, D)."""
    read = layer.attention_norm(x) if layer.pre_norm else x
    return layer.attention(read, layout, LayerTrace(False, False), pattern, position)


def add_attention(layer: EncoderLayer, x: Tensor, added: Tensor) -> Tensor:
    """(T, D) the states between the halves. added: what `attend` gave."""
    return x + added if layer.pre_norm else layer.attention_norm(x + added)


def feed_forward(layer: EncoderLayer, middle: Tensor) -> Tensor:
    """(T, D) what the feed-forward part adds to the states between the halves."""
    return layer.feed_forward(layer.output_norm(middle) if layer.pre_norm else middle)


def add_feed_forward(layer: EncoderLayer, middle: Tensor, added: Tensor) -> Tensor:
    """(T, D) what the layer gives. added: what `feed_forward` gave."""
    return middle + added if layer.pre_norm else layer.output_norm(middle + added)


@contextmanager
def without_output(layer: EncoderLayer, part: str) -> Iterator[None]:
    """Inside, a part ("attention" or "feed_forward") gives what its output matrix would read: (T, n) of heads or
    neurons."""
    owner: Any = getattr(layer, part)
    whole = getattr(owner, OUTPUTS[part])
    setattr(owner, OUTPUTS[part], nn.Identity())
    try:
        yield
    finally:
        setattr(owner, OUTPUTS[part], whole)
