"""Self-attention relations (MiniLM): softmax(X Xᵀ/√d) of queries, keys or values, compared row by row."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.errors import UserError
from compress.objectives._common import Base, make_zero_loss, teacher_of, widen
from compress.objectives._layers import end_layer, of_layers, runs

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


def log_relation(left: Tensor, right: Tensor, heads: int | None = None) -> Tensor:
    """log softmax(left rightᵀ/√d) per head: (n, l, H, K) each → (n, H, l, l).

    heads: split the concatenated heads anew into so many (MiniLMv2's relation heads).
    """
    if heads is not None:
        left, right = (x.flatten(2).unflatten(2, (heads, -1)) for x in (left, right))
    scores = left.transpose(1, 2) @ right.permute(0, 2, 3, 1)
    return (scores * left.shape[-1] ** -0.5).log_softmax(-1)


def divergence(
    batch: Batch, ours: tuple[Tensor, Tensor], theirs: tuple[Tensor, Tensor], heads: int | None = None
) -> Tensor:
    """KL(teacher ‖ student) of two relations, mean over heads and real query tokens; each (T, H, K)."""
    total = ours[0].new_zeros(())
    for tokens, count, length in runs(batch):
        (left, right), (their_left, their_right) = (
            [x[tokens].unflatten(0, (count, length)) for x in part] for part in (ours, theirs)
        )
        p, q = log_relation(left, right, heads), log_relation(their_left, their_right, heads)
        total = total + F.kl_div(p, q, log_target=True, reduction="sum") / p.shape[1]
    return total / batch.tokens
