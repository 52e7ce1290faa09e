"""Checks of how the layers of an encoder hang together: each raises UserError that names the key and what is allowed.

Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence

from compress.encoder.config.layer_shape import LayerShape
from compress.encoder.config.sharing import check_numbering
from compress.errors import UserError


def check_first_norm(norm: str, groups: Sequence[int], *, first_norm: bool) -> None:
    """Only a first layer of its own, with its norms before its parts, can do without its first norm."""
    if not first_norm and (norm != "pre" or groups.count(0) > 1):
        raise UserError(
            "first_norm is false",
            where="encoder.first_norm",
            why="only an unshared first layer with pre-layer normalization can omit its first norm",
            do="use norm: pre, and do not share the first layer",
        )


def check_rotary(bases: object, positions: str, layers: Sequence[LayerShape]) -> None:
    """Bases belong to rotary positions, one for each layer; a head is turned in pairs of its dimensions."""
    where = "encoder.rotary_bases"
    if (positions == "rotary") != (bases is not None):
        raise UserError("rotary_bases and positions: rotary must be set together", where=where)
    if bases is None:
        return
    if not isinstance(bases, tuple) or len(bases) != len(layers):
        raise UserError(f"rotary_bases must list a number for each of {len(layers)} layers", where=where)
    for base in bases:
        if isinstance(base, bool) or not isinstance(base, int | float) or not 1 < base < float("inf"):
            raise UserError(f"invalid rotary base {base!r}", where=where, why="it must be a number above 1")
    for index, shape in enumerate(layers):
        if shape.head_width % 2:
            raise UserError(
                f"a head width of {shape.head_width} is odd",
                where=f"encoder.layers.{index}",
                why="rotary positions rotate pairs of dimensions",
            )


def check_groups(groups: Sequence[int], layers: Sequence[LayerShape]) -> None:
    """Groups are numbered as they appear, and layers of one group have one shape."""
    where = "encoder.layer_groups"
    check_numbering(groups, len(layers), where)
    for layer, group in enumerate(groups):
        first = groups.index(group)
        if layers[layer] != layers[first]:
            raise UserError(
                f"layers {first} and {layer} are in one group but have different shapes",
                where=where,
                why=f"{layers[first]} and {layers[layer]}",
            )


def check_global_projections(
    windows: Sequence[int | None] | None, global_tokens: int, positions: str, *, shared: bool
) -> None:
    """Projections of global tokens' own belong to windowed layers, and to one global token at most.

    shared: the layers share matrices apart from each other.
    """
    where = "encoder.global_projections"
    if windows is None or None in windows:
        raise UserError("global projections need a window in every layer", where=where)
    if global_tokens > 1:
        raise UserError(f"global projections for {global_tokens} tokens", where=where, why="at most 1")
    if positions == "rotary":
        raise UserError("global projections and rotary positions cannot be used together", where=where)
    if shared:
        raise UserError("layers with global projections cannot share some of their matrices", where="encoder.sharing")
