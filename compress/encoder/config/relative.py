"""Relative positions: what attention scores know of the distance between two tokens. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from compress.encoder.config import checks
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.encoder.config.encoder import EncoderConfig


@dataclass(frozen=True)
class RelativeBias:
    """A learned number for each bucket of distances and each head, added to the scores (T5, 1910.10683; MPNet,
    2004.09297).

    buckets: half for tokens before, half for tokens after; of each half the first half are single distances, the rest
        grow with the logarithm of the distance.  max_distance: from here on all distances share the last bucket.
    shared: one table for all layers, as in MPNet; False: each layer has one for its own heads, as after heads were
        pruned.
    """

    buckets: int = 32
    max_distance: int = 128
    shared: bool = True

    def __post_init__(self) -> None:
        where = "encoder.relative_bias"
        checks.integer("buckets", self.buckets, least=4, most=65_536, where=where)
        checks.integer("max_distance", self.max_distance, least=self.buckets // 4 + 1, most=1_048_576, where=where)
        if not isinstance(self.shared, bool):
            raise UserError(f"shared must be true or false, not {self.shared!r}", where=f"{where}.shared")
        if self.buckets % 4:
            raise UserError(f"buckets is {self.buckets}", where=f"{where}.buckets", why="it must be a multiple of 4")


def count_relative(config: EncoderConfig) -> int:
    """Parameters of the tables of relative positions; a table that layers share counts once."""
    bias = config.relative_bias
    if bias is None:
        return 0
    if bias.shared:
        return bias.buckets * config.layers[0].heads
    shapes = config.layers if config.sharing is not None else config.group_shapes
    return bias.buckets * sum(shape.heads for shape in shapes)


def split_relative(config: EncoderConfig) -> RelativeBias | None:
    """The bias in its one spelling: layers with different numbers of heads cannot share a table."""
    bias = config.relative_bias
    if bias is None or not bias.shared or len({shape.heads for shape in config.layers}) == 1:
        return bias
    return dataclasses.replace(bias, shared=False)


def check_relative(config: EncoderConfig) -> None:
    """Raise UserError for relative positions beside attention windows, whose blocks have no place for them."""
    if config.relative_bias is None:
        return
    if not isinstance(config.relative_bias, RelativeBias):
        raise UserError("relative_bias must be an object", where="encoder.relative_bias")
    if config.windows is not None:
        raise UserError(
            "attention windows are not supported in a model with relative positions",
            where="encoder.windows",
            why="windowed attention has no relative position bias",
            do="leave windows out",
        )


def read_relative(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of an encoder's description with its relative positions as objects."""
    row = values.get("relative_bias")
    if row is None:
        return dict(values)
    if not isinstance(row, Mapping):
        raise UserError("relative_bias must be an object", where="encoder.relative_bias")
    checks.check_keys(RelativeBias, row, "encoder.relative_bias")
    return {**values, "relative_bias": RelativeBias(**row)}
