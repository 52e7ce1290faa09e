"""A batch on its way through a model, layer after layer: what lies below a changed part is computed once, and not again
for every change that is measured."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import Batch, EncoderOutput
from compress.encoder.infer.layer_walk import LayerWalk
from compress.encoder.modules.model import Model
from compress.fit.loss.row_answers import ANSWERS


class Reading(LayerWalk):
    """A walk that keeps nothing but what the next layer reads and the states between its halves.

    model: in evaluation mode, its parts plain or packed. What is computed is what the model computes of the whole
    batch, to the bit.
    """

    def __init__(self, model: Model, batch: Batch) -> None:
        with torch.inference_mode():
            super().__init__(model, batch)
        self._middle: Tensor | None = None

    @property
    def middle(self) -> Tensor:
        """(T, D) the states between its halves."""
        if self._middle is None:
            self._middle = self.layer.add_attention(self.x, self.attend())
        return self._middle

    @torch.inference_mode()
    def step(self) -> None:
        """Through the next layer."""
        layer, middle = self.layer, self.middle
        self._middle = None
        self.advance(layer.add_feed_forward(middle, layer.feed(middle)))

    @torch.inference_mode()
    def answer(self, part: str, added: Tensor | None = None) -> EncoderOutput:
        """The logits of the model as it is now, from a part ("attention" or "feed_forward") of the next layer on; what
        is before it must be as it was. added: (T, D) what the part adds, where that is known."""
        layer = self.layer
        if part == "attention":
            middle = layer.add_attention(self.x, self.attend() if added is None else added)
            added = None
        else:
            middle = self.middle
        x = layer.add_feed_forward(middle, layer.feed(middle) if added is None else added)
        rest = range(self.place + 1, self.model.config.depth)
        x = self.model.encoder.compute_layers(x, self.layout, self.batch.position_ids, rest)
        output = self.model.apply_heads(EncoderOutput(last_hidden=x), self.layout, ANSWERS, self.batch.mlm_positions)
        return EncoderOutput(last_hidden=x.new_zeros(0), logits=output.logits)
