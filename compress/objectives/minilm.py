"""Attention distributions and value relations of the last layer."""

from __future__ import annotations

from torch import Tensor

from compress.contracts import Batch
from compress.encoder.config.layer_maps import ModelPair
from compress.objectives._layers import same_heads
from compress.objectives._relations import OneLayer, Projected, divergence


class Objective(OneLayer):
    """KL of the attention distributions plus KL of the value relations of one layer (Wang et al., arXiv 2002.10957).

    The value relation is softmax(V Vᵀ/√d). Mean over heads and real query tokens. The student may have any hidden size,
    but needs as many heads as the teacher.
    student_layer: counted from 0, or from the end if negative; the paper uses the last.
    teacher_layer: likewise.
    """

    ignores_padding = True
    kind = "minilm"

    def __init__(self, *, student_layer: int = -1, teacher_layer: int = -1) -> None:
        super().__init__(student_layer, teacher_layer)

    def fit(self, pair: ModelPair, student: int, teacher: int) -> None:
        same_heads(pair, student, teacher, f"objective {self.kind}", "attention")

    def compare(self, batch: Batch, ours: Projected, theirs: Projected) -> Tensor:
        attention = divergence(batch, (ours["queries"], ours["keys"]), (theirs["queries"], theirs["keys"]))
        return attention + divergence(batch, (ours["values"], ours["values"]), (theirs["values"], theirs["values"]))
