"""Matrices that are the product of two thin ones: which may be, checked. Imports no torch.

y = U (V x) + b with V (r, in) and U (out, r) takes r (in + out) numbers in place of in * out: fewer only where the rank
is below in * out / (in + out).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compress.encoder.config import checks
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.encoder.config.encoder import EncoderConfig


def break_even(out: int, inputs: int) -> int:
    """The largest rank at which two thin matrices hold fewer numbers than the whole one; 0 where none does."""
    return (out * inputs - 1) // (out + inputs)


def is_low_rank(config: EncoderConfig) -> bool:
    """Whether any matrix of a layer is a product."""
    return any(shape.ranks for shape in config.layers)


def refuse_low_rank(config: EncoderConfig, doing: str, where: str, do: str = "") -> None:
    """Raise UserError for a model whose matrices are products, by an operation that reads whole ones."""
    if is_low_rank(config):
        raise UserError(
            f"the model has low-rank factors already, and {doing} needs full matrices",
            where=where,
            do=do or "start from its parent model, and factorize last",
        )


def check_ranks(config: EncoderConfig, layer: int) -> None:
    """Raise UserError for a matrix that is not there or named twice, a rank that is not below its smaller side, and
    layers that share matrices apart from each other."""
    shape, where = config.layers[layer], f"encoder.layers.{layer}.ranks"
    if not checks.is_list(shape.ranks):
        raise UserError("ranks must be an object of matrices", where=where)
    sizes = shape.sizes(config.hidden, gated=config.gated)
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
    if seen and config.sharing is not None:
        raise UserError(
            "layers that share only some of their parameters cannot have low-rank factors",
            where=where,
            do="share whole layers with their norms and biases, or use only one of the two",
        )
