"""A batch on its way through a model, layer after layer: what lies below a changed part is computed once, and not again
for every change that is measured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.encoder.infer.layer_halves import add_attention, add_feed_forward, attend, feed_forward
from compress.encoder.modules.layers import EncoderLayer
from compress.encoder.modules.layout import PackedLayout
from compress.encoder.modules.model import Model
from compress.fit.loss.row_answers import ANSWERS


class Reading:
    """x: (T, D) what layer `place` reads. Nothing else is kept but the states between the halves of that layer.

    model: in evaluation mode, its parts plain or packed. What is computed is what the model computes of the whole
    batch, to the bit.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        self.model, self.batch, self.place = model, batch, 0
        self.layout = PackedLayout.of(batch)
        with torch.inference_mode():
            self.turns = model.encoder.turns(batch.position_ids)
            self.x = model.encoder.embed(batch.input_ids, batch.position_ids, batch.segment_ids)
        self._middle: Tensor | None = None

    @property
    def layer(self) -> EncoderLayer:
        """The next one."""
        found: Any = self.model.encoder.layers[self.model.config.groups[self.place]]
        return found

    def attend(self) -> Tensor:
        """(T, D) what its attention adds."""
        return attend(self.layer, self.x, self.layout, self.model.config.patterns[self.place], self.turns[self.place])

    @property
    def middle(self) -> Tensor:
        """(T, D) the states between its halves."""
        if self._middle is None:
            self._middle = add_attention(self.layer, self.x, self.attend())
        return self._middle

    @torch.inference_mode()
    def step(self) -> None:
        """Through the next layer."""
        middle = self.middle
        self.x, self._middle = add_feed_forward(self.layer, middle, feed_forward(self.layer, middle)), None
        self.place += 1

    @torch.inference_mode()
    def answer(self, part: str, added: Tensor | None = None) -> EncoderOutput:
        """The logits of the model as it is now, from a part ("attention" or "feed_forward") of the next layer on; what
        is before it must be as it was. added: (T, D) what the part adds, where that is known."""
        layer = self.layer
        if part == "attention":
            middle = add_attention(layer, self.x, self.attend() if added is None else added)
            added = None
        else:
            middle = self.middle
        x = add_feed_forward(layer, middle, feed_forward(layer, middle) if added is None else added)
        rest = range(self.place + 1, self.model.config.depth)
        x = self.model.encoder.compute_layers(x, self.layout, self.batch.position_ids, rest)
        output = self.model.apply_heads(EncoderOutput(last_hidden=x), self.layout, ANSWERS, self.batch.mlm_positions)
        return EncoderOutput(last_hidden=x.new_zeros(0), logits=output.logits)
