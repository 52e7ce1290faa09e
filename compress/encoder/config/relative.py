"""Relative positions: what attention scores know of the distance between two tokens. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.encoder.config import checks
from compress.errors import UserError


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
        checks.integer(
            "max_distance", self.max_distance, least=self.buckets // 4 + 1, most=checks.MAX_POSITIONS, where=where
        )
        checks.flag("shared", self.shared, where)
        if self.buckets % 4:
            raise UserError(f"buckets is {self.buckets}", where=f"{where}.buckets", why="it must be a multiple of 4")

    def split(self, heads: Sequence[int]) -> RelativeBias:
        """The bias in its one spelling: layers with different numbers of heads cannot share a table."""
        return self if len(set(heads)) == 1 else dataclasses.replace(self, shared=False)

    def count_parameters(self, heads: Sequence[int]) -> int:
        """Parameters of the tables. heads: of each layer, or group of layers, that has a table of its own."""
        return self.buckets * (heads[0] if self.shared else sum(heads))


@dataclass(frozen=True)
class Disentangled:
    """Scores from content and distance (DeBERTa, 2006.03654; v3: 2111.09543): a table of vectors for distances, which
    each layer projects by its own query and key matrices, meets the queries and keys of the tokens.

    span: bucket of the largest distance; the table has 2 * span rows.  max_distance: distances above span / 2 share
    buckets that grow with their logarithm up to here; None: one bucket for each distance, the last for all beyond.
    content_to_position, position_to_content: which products are added to the scores (c2p, p2c).  norm: whether a norm
    stands between table and projection.
    """

    span: int
    max_distance: int | None = None
    content_to_position: bool = True
    position_to_content: bool = True
    norm: bool = False

    def __post_init__(self) -> None:
        where = "encoder.disentangled"
        checks.integer(
            "span", self.span, least=1 if self.max_distance is None else 4, most=checks.MAX_POSITIONS, where=where
        )
        if self.max_distance is not None:
            checks.integer(
                "max_distance", self.max_distance, least=self.span // 2 + 2, most=checks.MAX_POSITIONS, where=where
            )
        for name in ("content_to_position", "position_to_content", "norm"):
            checks.flag(name, getattr(self, name), where)
        if not self.terms:
            raise UserError("neither content_to_position nor position_to_content is true", where=where)

    @property
    def terms(self) -> int:
        """How many products with distances a score has."""
        return self.content_to_position + self.position_to_content

    def count_parameters(self, hidden: int, *, bias: bool) -> int:
        """Parameters of the table and its norm."""
        return (2 * self.span + (0 if not self.norm else 2 if bias else 1)) * hidden


def check_relative(values: Mapping[str, object], positions: str, *, windowed: bool) -> None:
    """Raise UserError for relative positions of two kinds, and beside attention windows, whose blocks have no place for
    them; and for an encoder without any positions.

    values: field of KINDS → its value.  positions: the encoder's other positions.
    """
    found = [name for name, value in values.items() if value is not None]
    for name in found:
        if not isinstance(values[name], KINDS[name]):
            raise UserError(f"{name} must be an object", where=f"encoder.{name}")
    if len(found) > 1:
        raise UserError(f"{' and '.join(found)} cannot be used together", where="encoder", do="remove one of them")
    if positions == "none" and "disentangled" not in found:
        raise UserError("positions: none needs disentangled attention", where="encoder.positions", do="use learned")
    if found and windowed:
        raise UserError(
            "attention windows are not supported in a model with relative positions",
            where="encoder.windows",
            why="windowed attention has no place for what they add to the scores",
            do="leave windows out",
        )


KINDS: Mapping[str, type] = {"relative_bias": RelativeBias, "disentangled": Disentangled}
"""Field of the encoder's config → what describes it."""


def read_relative(values: Mapping[str, Any]) -> dict[str, Any]:
    """`values` of an encoder's description with its relative positions as objects."""
    made = dict(values)
    for name, kind in KINDS.items():
        if (row := values.get(name)) is None:
            continue
        if not isinstance(row, Mapping):
            raise UserError(f"{name} must be an object", where=f"encoder.{name}")
        checks.check_keys(kind, row, f"encoder.{name}")
        made[name] = kind(**row)
    return made
