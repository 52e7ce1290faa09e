"""Layers that share their matrices and keep something of their own: which ones, checked and counted. Imports no torch.

ALBERT (1909.11942) shares whole layers; that is `EncoderConfig.layer_groups`. Here attention and feed-forward parts are
shared apart from each other, norms and biases may stay with each layer, and each layer may add a low-rank residual to
the matrices that it shares (relaxed sharing, 2410.20672).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from compress.encoder.config import checks
from compress.encoder.config.layer_shape import LayerShape, count_biases
from compress.errors import UserError

ATTENTION = ("query", "key", "value", "output")
FEED_FORWARD = ("up", "down")
PARTS = {"attention": ATTENTION, "feed_forward": FEED_FORWARD}
"""Part of a layer → its matrices."""
NORMS = {"attention": "attention_norm", "feed_forward": "output_norm"}
"""Part of a layer → the norm beside it."""


@dataclass(frozen=True)
class Sharing:
    """Which matrices are one tensor.

    attention, feed_forward: for each layer, the group whose matrices it uses, numbered 0.. in order of appearance.
    own_vectors: each layer keeps its own biases and norms; else a group shares those beside its matrices as well.
    residual_rank: rank r of the product (out, r)(r, in) that a layer adds to each matrix that it shares; 0 for none.
    """

    attention: tuple[int, ...]
    feed_forward: tuple[int, ...]
    own_vectors: bool = True
    residual_rank: int = 0

    def __post_init__(self) -> None:
        for part in PARTS:
            if checks.is_list(getattr(self, part)):
                object.__setattr__(self, part, tuple(getattr(self, part)))

    def groups(self, part: str) -> tuple[int, ...]:
        """Of the attention or the feed_forward parts."""
        return self.attention if part == "attention" else self.feed_forward

    def owner(self, part: str, layer: int) -> int | None:
        """The first layer of this layer's group, which holds its matrices; None where the group is this layer alone."""
        groups = self.groups(part)
        return groups.index(groups[layer]) if groups.count(groups[layer]) > 1 else None

    @property
    def shares(self) -> bool:
        """Whether any two layers share anything."""
        return any(len(set(self.groups(part))) < len(self.groups(part)) for part in PARTS)

    @property
    def whole_layers(self) -> bool:
        """Whether layers of a group are alike in everything: what `layer_groups` says."""
        return self.attention == self.feed_forward and not self.own_vectors and not self.residual_rank

    def count_parameters(
        self, layers: Sequence[LayerShape], hidden: int, *, norm_bias: bool, bias: bool, up_bias: bool, gated: bool
    ) -> int:
        """Parameters of all layers, a shared tensor once; see `LayerShape.count_parameters`."""
        total = 0
        for layer, shape in enumerate(layers):
            matrices = shape.sizes(hidden, gated=gated)
            for part in PARTS:
                owner = self.owner(part, layer)
                sizes = {name: size for name, size in matrices.items() if name.startswith(f"{part}.")}
                if owner in (None, layer):
                    total += sum(out * inputs for out, inputs in sizes.values())
                if owner in (None, layer) or self.own_vectors:
                    total += hidden * (2 if norm_bias else 1)  # the part's norm
                    total += count_biases(sizes, bias=bias, up_bias=up_bias)
                if owner is not None:
                    total += self.residual_rank * sum(map(sum, sizes.values()))
        return total


def renumber_groups(groups: Sequence[int]) -> tuple[int, ...]:
    """The same groups, numbered 0, 1, 2 .. in order of appearance."""
    order = list(dict.fromkeys(groups))
    return tuple(order.index(group) for group in groups)


def build_contiguous_groups(depth: int, count: int, where: str = "groups") -> tuple[int, ...]:
    """`count` runs of neighbouring layers, as even as they can be, cut where ALBERT cuts its num_hidden_groups.

    Raises UserError for more groups than layers.
    """
    if not 1 <= count <= depth:
        raise UserError(f"{count} groups of {depth} layers", where=where, do=f"use 1..{depth}")
    return tuple(int(layer / (depth / count)) for layer in range(depth))  # rounded as in transformers' Albert


def number_listed_groups(depth: int, groups: Sequence[Sequence[int]], where: str = "groups") -> tuple[int, ...]:
    """The groups that lists of layers say, such as [[0, 1], [2, 3]].

    Raises UserError for layers that are in no group, in two, or not there.
    """
    found = dict[int, int]()
    for number, layers in enumerate(groups):
        for layer in layers:
            if not 0 <= layer < depth:
                raise UserError(f"layer {layer} does not exist", where=where, why=f"allowed: 0..{depth - 1}")
            if layer in found:
                raise UserError(
                    f"the groups overlap: layer {layer} is in two" if found[layer] != number
                    else f"layer {layer} is listed twice",
                    where=where,
                    do="list each layer once",
                )  # fmt: skip
            found[layer] = number
    missing = [str(layer) for layer in range(depth) if layer not in found]
    if missing:
        raise UserError(
            f"the groups do not cover layer{'s' * (len(missing) > 1)} {', '.join(missing)}",
            where=where,
            why=f"the model's layers are 0..{depth - 1}",
            do=f"add {', '.join(f'[{layer}]' for layer in missing)} to keep them unshared",
        )
    return tuple(found[layer] for layer in range(depth))


def check_sharing(sharing: Sharing, layers: Sequence[LayerShape], hidden: int, *, first_norm: bool) -> None:
    """Groups cover the layers and are numbered as they appear, and layers that share a matrix have it in one shape."""
    where = "encoder.sharing"
    if not isinstance(sharing.own_vectors, bool):
        raise UserError(f"own_vectors must be true or false, not {sharing.own_vectors!r}", where=where)
    for part in PARTS:
        check_numbering(sharing.groups(part), len(layers), f"{where}.{part}")
        check_shapes(layers, sharing.groups(part), part, f"{where}.{part}")
    checks.integer("residual_rank", sharing.residual_rank, least=0, where=where)
    check_rank(sharing.residual_rank, layers, hidden, f"{where}.residual_rank", sharing)
    if not first_norm and not sharing.own_vectors and sharing.owner("attention", 0) is not None:
        raise UserError(
            "layer 0 has no norm before its attention, but the layers that it would share parameters with have one",
            where=where,
            do="let layers keep their own norms and biases, or do not share layer 0",
        )


def check_numbering(groups: object, depth: int, where: str) -> None:
    """Raise UserError unless there is a group for each layer, numbered 0, 1, 2 .. as they appear."""
    if not checks.is_list(groups) or len(groups) != depth:  # pyright: ignore[reportArgumentType]
        count = len(groups) if checks.is_list(groups) else groups  # pyright: ignore[reportArgumentType]
        raise UserError(f"{count} entries for {depth} layers", where=where)
    seen = 0
    for layer, group in enumerate(groups):  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues]
        checks.integer(f"entry {layer}", group, least=0, where=where)
        if group > seen:
            why = "groups are numbered 0, 1, 2.. as they appear"
            raise UserError(f"entry {layer} is {group}", where=where, why=why, do=f"use {seen}")
        seen = max(seen, group + 1)


def check_rank(
    rank: int, layers: Sequence[LayerShape], hidden: int, where: str, sharing: Sharing | None = None
) -> None:
    """Raise UserError for a rank above the smaller side of a matrix that has a residual: more would say nothing more.

    Where the model does not share yet any of its matrices may get one.
    """
    shapes = [
        shape
        for layer, shape in enumerate(layers)
        if sharing is None or any(sharing.owner(part, layer) is not None for part in PARTS)
    ]
    widest = min((min(hidden, s.attention_width, s.feed_forward) for s in shapes), default=rank)
    if rank > widest:
        raise UserError(
            f"residual rank {rank} is too large",
            where=where,
            why=f"the smallest matrix has rank {widest}",
            do=f"use at most {widest}",
        )


def check_shapes(layers: Sequence[LayerShape], groups: Sequence[int], part: str, where: str) -> None:
    """Raise UserError where two layers of a group have different shapes of this part."""
    for layer, group in enumerate(groups):
        first = groups.index(group)
        ours, theirs = (_shape(layers[i], part) for i in (first, layer))
        if ours != theirs:
            raise UserError(
                f"layers {first} and {layer} are in one group but have different shapes",
                where=where,
                why=f"{ours} and {theirs}",
                do="share only layers of the same shape",
            )


def _shape(layer: LayerShape, part: str) -> str:
    if part == "attention":
        return f"{layer.heads} heads of width {layer.head_width}"
    return f"feed-forward width {layer.feed_forward}"


__all__ = [
    "ATTENTION",
    "FEED_FORWARD",
    "NORMS",
    "PARTS",
    "Sharing",
    "check_numbering",
    "check_rank",
    "check_sharing",
    "check_shapes",
    "build_contiguous_groups",
    "number_listed_groups",
    "renumber_groups",
]
