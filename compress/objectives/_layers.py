"""What objectives that compare layers share: the two models told beforehand, the map followed, projections."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import Tensor, nn

from compress.contracts import Batch, EncoderOutput, Needs
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.modules.blocks import Block
from compress.encoder.modules.layout import PackedLayout
from compress.errors import UserError
from compress.objectives._common import Base, widen

Projection = Literal["auto", "none", "shared", "per-layer"]


class Layerwise(Base):
    """Base of objectives with a layer map: `bind` before training, `total` over the map in `forward`."""

    kind = ""
    pair: ModelPair | None = None
    teacher_needs: Needs | None = None

    def bind(self, pair: ModelPair) -> None:
        """Be told of the two models; makes what trains along. Raises UserError when they cannot be compared."""
        self.pair = pair
        if pair.choice == "learned":
            self.choice = nn.Parameter(torch.zeros(pair.student.depth, pair.teacher.depth))
        self.teacher_needs = of_layers(self.teacher_needs, (t for _, t in self.list_needed_pairs()))

    def bound(self) -> ModelPair:
        """The models, which must have been told."""
        if self.pair is None:
            raise UserError("this objective compares layers and needs bind(models) first", where=self.kind)
        return self.pair

    def total(self, distance: Callable[[int, int], Tensor]) -> Tensor:
        """Sum over the map of distance(student layer, teacher layer), as PKD and TinyBERT sum."""
        pair = self.bound()
        if pair.choice == "fixed":
            return torch.stack([distance(s, t) for s, t in pair.pairs]).sum()
        every = torch.stack(
            [torch.stack([distance(s, t) for t in range(pair.teacher.depth)]) for s in range(pair.student.depth)]
        )
        if pair.choice == "smallest":
            return every.min(1).values.sum()
        return (every * self.choice.to(every.dtype).softmax(1)).sum()

    def list_needed_pairs(self) -> list[tuple[int, int]]:
        """Every (student, teacher) layer that may be compared."""
        pair = self.bound()
        if pair.choice == "fixed":
            return list(pair.pairs)
        return [(s, t) for s in range(pair.student.depth) for t in range(pair.teacher.depth)]


def of_layers(needs: Needs | None, layers: Iterable[int]) -> Needs | None:
    """`needs`, with what they ask of every layer asked of `layers` alone."""
    if needs is None:
        return None
    chosen = frozenset(layers)
    asked = ("hidden_states", "attentions", "attention_scores", "projections")
    return dataclasses.replace(needs, **{name: chosen for name in asked if getattr(needs, name)})


Projected = Iterable[tuple[int, Tensor, Tensor]]
"""A student layer, its states (N, d) and those of the teacher (N, D) that their projection is compared with."""


class Projections(nn.Module):
    """Linear maps from the student's width to the teacher's, one for all layers or one a layer; dropped at the end.

    how: "auto" projects only where the widths differ (then one for all, as TinyBERT's code does). They are drawn as a
    change of basis; a distillation then fits them to real input (`stages.distill.projections`).
    """

    def __init__(self, how: Projection, student: int, teacher: int, layers: int, where: str) -> None:
        super().__init__()
        if how == "auto":
            how = "none" if student == teacher else "shared"
        if how == "none" and student != teacher:
            raise UserError(
                "teacher and student have different widths",
                where=where,
                why=f"the teacher's hidden size is {teacher}, the student's {student}",
                do="use projection: shared",
            )
        count = {"none": 0, "shared": 1, "per-layer": layers}[how]
        self.maps = nn.ModuleList(nn.utils.skip_init(nn.Linear, student, teacher) for _ in range(count))
        generator = torch.Generator().manual_seed(0)
        for linear in self.maps:
            assert isinstance(linear, nn.Linear)
            # Semi-orthogonal: at the start the student's states keep their lengths and angles.
            nn.init.orthogonal_(linear.weight, generator=generator)
            nn.init.zeros_(linear.bias)

    def forward(self, states: Tensor, layer: int) -> Tensor:
        """(.., student width) → (.., teacher width)."""
        if not len(self):
            return states
        return self.find_map(layer)(states)

    def __len__(self) -> int:
        return len(self.maps)

    def find_map(self, layer: int) -> nn.Module:
        """What a layer's states go through."""
        return self.maps[layer if len(self) > 1 else 0]


class HiddenStates(Layerwise):
    """Base of objectives that compare mapped hidden states in the teacher's width."""

    def __init__(self, *, projection: Projection = "auto") -> None:
        super().__init__()
        self.projection: Projection = projection
        self.student_needs = Needs(hidden_states=True)
        self.teacher_needs: Needs | None = Needs(hidden_states=True)

    def bind(self, pair: ModelPair) -> None:
        super().bind(pair)
        widths = pair.student.hidden, pair.teacher.hidden
        self.maps = Projections(self.projection, *widths, pair.student.depth, f"{self.kind}.projection")

    def list_projected(self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch) -> Projected:
        """What is compared, layer by layer, where the map is fixed."""
        return ((s, *self.read_states(student, teacher, batch, s, t)) for s, t in self.bound().pairs)

    def read_states(
        self, student: EncoderOutput, teacher: EncoderOutput, batch: Batch, s: int, t: int
    ) -> tuple[Tensor, Tensor]:
        """(N, d) of a student layer and (N, D) of a teacher layer."""
        return states(student, s, self.kind), states(teacher, t, self.kind)


def states(output: EncoderOutput, layer: int, kind: str) -> Tensor:
    """(T, D) output of a layer, from 0; -1 is the embedding output."""
    if output.hidden_states is None:
        raise UserError("the model's output has no hidden_states", where=f"objective {kind}")
    return widen(output.hidden_states[layer + 1])


def blocks(batch: Batch) -> list[Block]:
    """Neighbouring sequences that are computed as one."""
    return PackedLayout.of(batch).blocks


def pair_count(batch: Batch) -> int:
    """Pairs of tokens of one sequence: the cells of one head's attention map."""
    return PackedLayout.of(batch).count_pairs()


def same_heads(pair: ModelPair, student: int, teacher: int, where: str, what: str) -> None:
    """Raise UserError unless two layers have equally many heads. what: is compared head by head, with its verb."""
    ours, theirs = pair.student.layers[student].heads, pair.teacher.layers[teacher].heads
    if ours != theirs:
        raise UserError(
            f"student layer {student} has {ours} heads, teacher layer {teacher} has {theirs}",
            where=where,
            why=f"this objective compares {what} head by head",
            do="use minilmv2, which supports different numbers of heads",
        )


def end_layer(number: int, depth: int, name: str, kind: str) -> int:
    """A layer counted from 0, or from the end when negative. Raises UserError with the legal range."""
    if not -depth <= number < depth:
        raise UserError(
            f"layer {number} does not exist", where=f"objective {kind}.{name}", why=f"allowed: {-depth}..{depth - 1}"
        )
    return number % depth


def rows_of(values: Tensor, batch: Batch, rows: Literal["first", "mean"]) -> Tensor:
    """(T, D) → (B, D): what stands for a row, its first token or the mean over its real tokens."""
    return PackedLayout.of(batch).pool(values, rows)
