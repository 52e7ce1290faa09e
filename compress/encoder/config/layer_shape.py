"""The shape of one layer, and which of its matrices may be low-rank or 2:4 sparse. Imports no torch."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from compress.encoder.config import checks
from compress.errors import UserError

PATTERN = "2:4"
"""Of every four neighbouring weights two may be nonzero."""
KEPT, OF = 2, 4
UP = "feed_forward.up"


@dataclass(frozen=True)
class LayerShape:
    """One layer: `heads` heads of `head_width`, and a feed-forward part of width `feed_forward`.

    Zero heads or a zero feed-forward width is refused: a layer that lost a whole part is removed, not emptied.
    ranks: (matrix, rank r) of those of its matrices that are products (out, r)(r, in), named as `attention.query`.
    sparse: those of its matrices that are 2:4 sparse.
    """

    heads: int
    head_width: int
    feed_forward: int
    ranks: tuple[tuple[str, int], ...] = ()
    sparse: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if checks.is_list(self.sparse):
            object.__setattr__(self, "sparse", tuple(self.sparse))
        rows = self.ranks.items() if isinstance(self.ranks, Mapping) else self.ranks
        if checks.is_list(rows) or isinstance(self.ranks, Mapping):
            object.__setattr__(self, "ranks", tuple(tuple(row) if checks.is_list(row) else row for row in rows))

    def __repr__(self) -> str:
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        known = {name: value for name, value in values.items() if name not in ("ranks", "sparse") or value}
        return f"LayerShape({', '.join(f'{name}={value!r}' for name, value in known.items())})"

    @property
    def attention_width(self) -> int:
        return self.heads * self.head_width

    def count_parameters(
        self, hidden: int, *, norm_bias: bool = True, bias: bool = True, up_bias: bool = True, gated: bool = False
    ) -> int:
        """Two norms, four projections and the two matrices of the feed-forward part, the first twice when gated.

        norm_bias, bias, up_bias: whether the norms, the matrices and of these `feed_forward.up` have one.
        """
        sizes, ranks = self.sizes(hidden, gated=gated), dict(self.ranks)
        total = sum((o + i) * ranks[name] if name in ranks else o * i for name, (o, i) in sizes.items()) + 2 * hidden
        total += 2 * hidden if norm_bias else 0
        return total + count_biases(sizes, bias=bias, up_bias=up_bias)

    def sizes(self, hidden: int, *, gated: bool = False) -> dict[str, tuple[int, int]]:
        """Matrix → (out, in)."""
        inner, width = self.attention_width, self.feed_forward
        found = {f"attention.{name}": (inner, hidden) for name in ("query", "key", "value")}
        up = (width * (2 if gated else 1), hidden)
        return found | {
            "attention.output": (hidden, inner),
            UP: up,
            "feed_forward.down": (hidden, width),
        }


def count_biases(sizes: Mapping[str, tuple[int, int]], *, bias: bool, up_bias: bool) -> int:
    """Numbers in the biases of matrices. bias: whether they have one.  up_bias: whether `feed_forward.up` has."""
    return sum(out for name, (out, _) in sizes.items() if (up_bias if name == UP else bias))


def check_ranks(shape: LayerShape, hidden: int, where: str, *, gated: bool, shared: bool) -> None:
    """Raise UserError for a matrix that is not there or named twice, a rank that is not below its smaller side, and
    layers that share matrices apart from each other (shared)."""
    where = f"{where}.ranks"
    if not checks.is_list(shape.ranks):
        raise UserError("ranks must be an object of matrices", where=where)
    sizes = shape.sizes(hidden, gated=gated)
    seen: set[str] = set()
    for row in shape.ranks:
        if not checks.is_list(row) or len(row) != 2 or not isinstance(row[0], str):
            raise UserError("each entry is a matrix and its rank", where=where)
        name, rank = row
        if name not in sizes:
            raise UserError(f"'{name}' is not a matrix of a layer", where=where, why=f"known: {', '.join(sizes)}")
        if name in seen:
            raise UserError(f"'{name}' is listed twice", where=where)
        seen.add(name)
        checks.positive(name, rank, where=where)
        if rank >= min(sizes[name]):
            out, inputs = sizes[name]
            raise UserError(
                f"rank {rank} of {name} is too large",
                where=where,
                why=f"it is {out} x {inputs}",
                do=f"use 1..{min(out, inputs) - 1}",
            )
    if seen and shared:
        raise UserError(
            "layers that share only some of their parameters cannot have low-rank factors",
            where=where,
            do="share whole layers with their norms and biases, or use only one of the two",
        )


def check_sparse(shape: LayerShape, hidden: int, where: str, *, gated: bool, shared: bool) -> None:
    """Raise UserError for a matrix that is not there or named twice, one that is a product, one that is not divisible
    into fours, and layers that share matrices apart from each other (shared)."""
    where = f"{where}.sparse"
    if not checks.is_list(shape.sparse) or not all(isinstance(name, str) for name in shape.sparse):
        raise UserError("sparse must be a list of matrices", where=where)
    sizes, low = shape.sizes(hidden, gated=gated), dict(shape.ranks)
    for place, name in enumerate(shape.sparse):
        if name not in sizes:
            raise UserError(f"'{name}' is not a matrix of a layer", where=where, why=f"known: {', '.join(sizes)}")
        if name in shape.sparse[:place]:
            raise UserError(f"'{name}' is listed twice", where=where)
        if name in low:
            raise UserError(f"{name} has low-rank factors and cannot be {PATTERN} sparse", where=where)
        if sizes[name][1] % OF:
            raise UserError(f"the {sizes[name][1]} inputs of {name} are not divisible by {OF}", where=where)
    if shape.sparse and shared:
        raise UserError(
            f"layers that share only some of their parameters cannot be {PATTERN} sparse",
            where=where,
            do="share whole layers with their norms and biases, or use only one of the two",
        )
