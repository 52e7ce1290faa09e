"""A batch on its way through a model, layer after layer and half after half, to the bit as the model computes it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from compress.contracts import Batch
from compress.encoder.modules.layers import EncoderLayer, LayerTrace
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.encoder.reshape.cut import OUTPUTS


class LayerWalk:
    """x: (T, D) what the next layer reads. place: which layer that is.

    model: in evaluation mode.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        self.model, self.batch, self.place = model, batch, 0
        self.layout = PackedLayout.of(batch)
        self.turns = model.encoder.turns(batch.position_ids)
        self.x = model.encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)

    @property
    def layer(self) -> EncoderLayer:
        """The next one."""
        found = self.model.encoder.layers[self.model.config.groups[self.place]]
        assert isinstance(found, EncoderLayer)
        return found

    def attend(self) -> Tensor:
        """(T, D) what the attention of the next layer adds."""
        pattern, turn = self.model.config.patterns[self.place], self.turns[self.place]
        return self.layer.attend(self.x, self.layout, LayerTrace(), pattern, turn)

    def advance(self, x: Tensor) -> None:
        """Past the next layer, whose output is x (T, D)."""
        self.x, self.place = x, self.place + 1


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
