"""Attention maps, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.modules.blocks import BlockMaps
from compress.errors import UserError
from compress.objectives._common import add, make_zero_loss, teacher_of, widen
from compress.objectives._layers import Layerwise, pair_count, same_heads

_KIND = "attention_maps"


class Objective(Layerwise):
    """Difference of the attention maps of mapped layers, head by head, summed over the layer map.

    distance: "scores": squared difference of the scores before the softmax, mean over heads and pairs of real tokens
        (TinyBERT, Jiao et al., arXiv 1909.10351).  "kl": KL(teacher ‖ student) of the probabilities, mean over heads
        and real query tokens.
    Student and teacher need the same number of heads in mapped layers. Attention is computed without fused kernels.
    """

    ignores_padding = True
    kind = f"objective {_KIND}"

    def __init__(self, *, distance: Literal["scores", "kl"] = "scores") -> None:
        super().__init__()
        self.distance = distance
        scores = distance == "scores"
        self.student_needs = Needs(attention_scores=scores, attentions=not scores)
        self.teacher_needs: Needs | None = self.student_needs

    def bind(self, pair: ModelPair) -> None:
        super().bind(pair)
        for s, t in self.list_needed_pairs():
            same_heads(pair, s, t, self.kind, "attention maps")

    def count(self, batch: Batch) -> int:
        return pair_count(batch) if self.distance == "scores" else batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """Maps N x B x (H, l, l) of both → scalar."""
        ours, theirs = self._maps(student), self._maps(teacher_of(teacher, _KIND))
        terms = self.count(batch.on_host)
        if not terms:
            return make_zero_loss(student.last_hidden)

        def distance(s: int, t: int) -> Tensor:
            blocks = zip(BlockMaps.of(ours[s]).blocks, BlockMaps.of(theirs[t]).blocks, strict=True)
            sums = [self._compare(widen(a), widen(b)) for a, b in blocks]
            return add(sums) / (terms * self.bound().student.layers[s].heads)

        return self.total(distance)

    def _compare(self, ours: Tensor, theirs: Tensor) -> Tensor:
        """(n, H, L, L) of some sequences, 0 on padding → their sum."""
        if self.distance == "scores":
            return F.mse_loss(ours, theirs, reduction="sum")
        tiny = torch.finfo(ours.dtype).tiny
        logs = theirs.clamp_min(tiny).log() - ours.clamp_min(tiny).log()
        return (theirs * logs).sum()

    def _maps(self, output: EncoderOutput) -> tuple[Sequence[Tensor], ...]:
        maps = output.attention_scores if self.distance == "scores" else output.attentions
        if maps is None:
            raise UserError("the model's output has no attention maps", where=self.kind)
        return maps
