"""Matrices that are the product of two thin ones: where they pay. Imports no torch.

y = U (V x) + b with V (r, in) and U (out, r) takes r (in + out) numbers in place of in * out: fewer only where the rank
is below in * out / (in + out).
"""

from __future__ import annotations

from compress.encoder.config.encoder import EncoderConfig


def break_even(out: int, inputs: int) -> int:
    """The largest rank at which two thin matrices hold fewer numbers than the whole one; 0 where none does."""
    return (out * inputs - 1) // (out + inputs)


def is_low_rank(config: EncoderConfig) -> bool:
    """Whether any matrix of a layer is a product."""
    return any(shape.ranks for shape in config.layers)
