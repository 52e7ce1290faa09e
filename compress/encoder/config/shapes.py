"""Another shape for an encoder: what a student's widths are, from those of its model and what a person asks for.

Nothing here imports torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from compress.encoder.config.encoder import EncoderConfig, LayerShape
from compress.errors import UserError

Each = int | Sequence[int] | None
"""One number for all layers, one for each, or as it was."""


def resize_config(
    config: EncoderConfig,
    *,
    hidden: int | None = None,
    heads: Each = None,
    feed_forward: Each = None,
    embedding: int | None = None,
) -> EncoderConfig:
    """`config` with other widths; what is None follows from the rest.

    heads: one number for all layers has heads of hidden / heads channels, as stock models have; a list keeps the width
    of a head that the model would have with its own number of them.  feed_forward: None grows and shrinks with hidden.
    embedding: None keeps tables of their own width, or follows hidden.
    Raises UserError, naming the key of `student:`, for numbers that do not fit together.
    """
    wanted = hidden or config.hidden
    numbers = _each(heads, config.depth, "heads")
    inner = _each(feed_forward, config.depth, "intermediate_size")
    layers = []
    for index, old in enumerate(config.layers):
        width = _head_width(config, old, wanted, heads, whole=config.hidden == old.attention_width)
        count = old.heads if numbers is None else numbers[index]
        up = max(1, old.feed_forward * wanted // config.hidden) if inner is None else inner[index]
        layers.append(LayerShape(count, width, up))
    width = embedding or (config.embedding if config.embedding != config.hidden else None)
    fixed = config.positions == "sinusoidal" and (width or wanted) != config.width
    return dataclasses.replace(
        config,
        hidden=wanted,
        layers=tuple(layers),
        embedding=width,
        positions="learned" if fixed else config.positions,  # a fixed table cannot be narrowed along with the words
    )


def _head_width(config: EncoderConfig, old: LayerShape, hidden: int, heads: Each, *, whole: bool) -> int:
    """whole: the heads of this layer together are as wide as its model."""
    single = isinstance(heads, int)
    if heads is None and (hidden == config.hidden or not whole):
        return old.head_width
    if not single and not whole:
        return old.head_width
    count = heads if single else old.heads
    assert isinstance(count, int)
    if hidden % count:
        fitting = [n for n in range(1, hidden + 1) if hidden % n == 0]
        near = min(fitting, key=lambda n: (abs(n - count), -n))
        sizes = sorted({max(count, hidden // count * count), (hidden // count + 1) * count})
        raise UserError(
            f"hidden {hidden} is not divisible by {count} heads",
            where="student.heads" if single else "student.hidden",
            do=f"use hidden {' or '.join(map(str, sizes))}, or heads {near}",
        )
    return hidden // count


def _each(value: Each, depth: int, key: str) -> list[int] | None:
    if value is None:
        return None
    if isinstance(value, int):
        return [value] * depth
    if len(value) != depth:
        raise UserError(
            f"{len(value)} numbers for {depth} layers",
            where=f"student.{key}",
            do="give one number for all, or one for each layer that is kept",
        )
    return list(value)
