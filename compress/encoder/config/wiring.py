"""Checks of how the layers of an encoder hang together: each raises UserError that names the key and what is allowed.

Nothing here imports torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compress.encoder.config import checks
from compress.encoder.config.sharing import check_numbering
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.encoder.config.encoder import EncoderConfig


def check_rotary(config: EncoderConfig) -> None:
    """Bases belong to rotary positions, one for each layer; a head is turned in pairs of its dimensions."""
    for name in ("first_norm", "bias", "linear_bias", "gated"):
        if not isinstance(value := getattr(config, name), bool):
            raise UserError(f"{name} must be true or false, not {value!r}", where=f"encoder.{name}")
    if not config.first_norm and (config.norm != "pre" or config.groups.count(0) > 1):
        raise UserError(
            "first_norm is false",
            where="encoder.first_norm",
            why="only an unshared first layer with pre-layer normalization can omit its first norm",
            do="use norm: pre, and do not share the first layer",
        )
    where, bases = "encoder.rotary_bases", config.rotary_bases
    if (config.positions == "rotary") != (bases is not None):
        raise UserError("rotary_bases and positions: rotary must be set together", where=where)
    if bases is None:
        return
    if not checks.is_list(bases) or len(bases) != config.depth:
        raise UserError(f"rotary_bases must list a number for each of {config.depth} layers", where=where)
    for base in bases:
        if isinstance(base, bool) or not isinstance(base, int | float) or not 1 < base < float("inf"):
            raise UserError(f"invalid rotary base {base!r}", where=where, why="it must be a number above 1")
    for index, shape in enumerate(config.layers):
        if shape.head_width % 2:
            raise UserError(
                f"a head width of {shape.head_width} is odd",
                where=f"encoder.layers.{index}",
                why="rotary positions rotate pairs of dimensions",
            )


def check_groups(config: EncoderConfig) -> None:
    """Groups are numbered as they appear, and layers of one group have one shape."""
    groups = config.layer_groups
    if groups is None:
        return
    where = "encoder.layer_groups"
    check_numbering(groups, config.depth, where)
    for layer, group in enumerate(groups):
        first = groups.index(group)
        if config.layers[layer] != config.layers[first]:
            raise UserError(
                f"layers {first} and {layer} are in one group but have different shapes",
                where=where,
                why=f"{config.layers[first]} and {config.layers[layer]}",
            )


def check_global_projections(config: EncoderConfig) -> None:
    """Projections of global tokens' own belong to windowed layers, and to one global token at most."""
    if not isinstance(config.global_projections, bool):
        value = config.global_projections
        raise UserError(f"global_projections must be true or false, not {value!r}", where="encoder.global_projections")
    if not config.global_projections:
        return
    where = "encoder.global_projections"
    if config.windows is None or None in config.windows:
        raise UserError("global projections need a window in every layer", where=where)
    if config.global_tokens > 1:
        raise UserError(f"global projections for {config.global_tokens} tokens", where=where, why="at most 1")
    if config.positions == "rotary":
        raise UserError("global projections and rotary positions cannot be used together", where=where)
    if config.sharing is not None:
        raise UserError("layers with global projections cannot share some of their matrices", where="encoder.sharing")


def refuse_global_projections(config: EncoderConfig, doing: str, where: str) -> None:
    """Raise UserError for a model whose global tokens have matrices of their own, which `doing` does not know."""
    if config.global_projections:
        raise UserError(
            "this model's global tokens have projections of their own, as in Longformer",
            where=where,
            why=f"{doing} is not supported for them",
        )
