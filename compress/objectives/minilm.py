"""The last layer's attention and value relation."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.layermaps import ModelPair
from compress.errors import UserError
from compress.objectives._common import nothing, teacher_of
from compress.objectives._layers import Layerwise, end_layer
from compress.objectives._relations import divergence, projected

_KIND = "minilm"


class Objective(Layerwise):
    """KL of the attention distributions plus KL of the value relations of one layer (Wang et al., arXiv 2002.10957).

    The value relation is softmax(V Vᵀ/√d). Mean over heads and real query tokens. Any width of the student will do,
    but as many heads as the teacher has.
    student_layer: counted from 0, or from the end when negative; the paper takes the last.
    teacher_layer: likewise.
    """

    kind = f"objective {_KIND}"

    def __init__(self, *, student_layer: int = -1, teacher_layer: int = -1) -> None:
        super().__init__()
        self.layers = (student_layer, teacher_layer)
        self.student_needs = Needs(projections=True)
        self.teacher_needs: Needs | None = Needs(projections=True)

    def bind(self, pair: ModelPair) -> None:
        self.pair = pair
        s = end_layer(self.layers[0], pair.student.depth, "student_layer", _KIND)
        t = end_layer(self.layers[1], pair.teacher.depth, "teacher_layer", _KIND)
        ours, theirs = pair.student.layers[s].heads, pair.teacher.layers[t].heads
        if ours != theirs:
            raise UserError(
                f"student layer {s} has {ours} heads, teacher layer {t} has {theirs}",
                where=self.kind,
                why="attention is compared head by head",
                do="use minilmv2, which needs no equal heads",
            )

    def count(self, batch: Batch) -> int:
        return batch.tokens

    def forward(self, student: EncoderOutput, teacher: EncoderOutput | None, batch: Batch) -> Tensor:
        """queries, keys, values (T, H, K) of one layer of both → scalar."""
        both = (student, teacher_of(teacher, _KIND))
        if not batch.tokens:
            return nothing(student.last_hidden)
        (q, their_q), (k, their_k), (v, their_v) = (
            [projected(output, role, layer, _KIND) for output, layer in zip(both, self.layers, strict=True)]
            for role in ("queries", "keys", "values")
        )
        return divergence(batch, (q, k), (their_q, their_k)) + divergence(batch, (v, v), (their_v, their_v))
