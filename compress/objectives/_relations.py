"""Self-attention relations (MiniLM): softmax(X Xᵀ/√d) of queries, keys or values, compared row by row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.modules.attention import normalize, score
from compress.encoder.modules.blocks import spread
from compress.errors import UserError
from compress.objectives._common import Base, add, make_zero_loss, teacher_of, widen
from compress.objectives._layers import blocks, end_layer, of_layers

ROLES = ("queries", "keys", "values")


class OneLayer(Base):
    """Base of objectives that relate the tokens of one layer of each model; what they compare is in `compare`."""

    kind = ""

    def __init__(self, student_layer: int, teacher_layer: int) -> None:
        super().__init__()
        self.layers = (student_layer, teacher_layer)
        self.student_needs = Needs(projections=True)
        self.teacher_needs: Needs | None = Needs(projections=True)

    def bind(self, pair: ModelPair) -> None:
        """Be told of the two models. Raises UserError when their layers cannot be compared."""
        s = end_layer(self.layers[0], pair.student.depth, "student_layer", self.kind)
        t = end_layer(self.layers[1], pair.teacher.depth, "teacher_layer", self.kind)
        self.teacher_needs = of_layers(self.teacher_needs, [t])
        self.fit(pair, s, t)

    def fit(self, pair: ModelPair, student: int, teacher: int) -> None:
        """What these two layers ask of the objective, or UserError."""
        raise NotImplementedError

    def compare(self, batch: Batch, ours: Projected, theirs: Projected) -> Tensor:
        """The loss between two layers' queries, keys and values."""
        raise NotImplementedError

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """queries, keys, values (T, H, K) of one layer of both → scalar."""
        both = zip((student, teacher_of(teacher, self.kind)), self.layers, strict=True)
        if not batch.tokens:
            return make_zero_loss(student.last_hidden)
        ours, theirs = ({role: _projected(o, role, layer, self.kind) for role in ROLES} for o, layer in both)
        return self.compare(batch, ours, theirs)


Projected = dict[str, Tensor]
"""Role → (T, H, K)."""


def _projected(output: EncoderOutput, role: str, layer: int, kind: str) -> Tensor:
    kept = getattr(output, role)
    if kept is None:
        raise UserError(f"the model's output has no {role}", where=f"objective {kind}")
    return widen(kept[layer])


def log_relation(left: Tensor, right: Tensor, padded_pairs: Tensor | None = None) -> Tensor:
    """log softmax(left rightᵀ/√d) per head: (n, H, l, K) each → (n, H, l, l).

    padded_pairs: (n, 1, l, l) bool; a real token does not see padding, and padding is related to all alike.
    """
    scores = score(left, right)
    if padded_pairs is not None:  # a finite number: 0 · ∞ is none
        scores = scores.masked_fill(padded_pairs, torch.finfo(scores.dtype).min / 2)
    return normalize(scores, torch.log_softmax)


def divergence(
    batch: Batch, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], heads: int | None = None
) -> Tensor:
    """KL(teacher ‖ student) of two relations, mean over heads and real query tokens; each (T, H, K).

    heads: split the concatenated heads anew into so many (MiniLMv2's relation heads).
    """
    parts = [*ours, *theirs]
    if heads is not None:
        parts = [x.flatten(1).unflatten(1, (heads, -1)) for x in parts]
    sums = []
    for block, left, right, their_left, their_right in spread(blocks(batch), *parts, heads_first=True):
        p, q = (log_relation(*x, block.padded_pairs) for x in ((left, right), (their_left, their_right)))
        sums.append(F.kl_div(p, q, log_target=True, reduction="sum") / p.shape[1])
    return add(sums) / batch.tokens
