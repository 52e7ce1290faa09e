"""Steps that are trained: where they start from, and the factor of their gradient."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import Scheme
from compress.quantizers._histogram import FRACTIONS
from compress.quantizers._rounding import SMALLEST, codes_of, numbers_of


def full(bits: int, per: str) -> Scheme:
    """Every code there is: -8..7 of 4 bits, as LSQ has them."""
    half = 2 ** (bits - 1)
    return Scheme(bits, -half, half - 1, per)  # pyright: ignore[reportArgumentType]


def gradient_factor(count: int, scheme: Scheme) -> float:
    """1 / sqrt(N Qp): N numbers share the step, Qp is the greatest code (1902.08153 §2.2)."""
    return (count * scheme.highest) ** -0.5


@torch.no_grad()
def fit_scale(x: Tensor, scheme: Scheme) -> Tensor:
    """The symmetric scale with the least squared error, among parts of max|x| / highest: (rows,) per row, else ()."""
    rows = x.float() if scheme.per == "row" else x.float().reshape(1, -1)
    widest = rows.abs().amax(-1).clamp_min(SMALLEST) / scheme.highest
    by_row = Scheme(scheme.bits, scheme.lowest, scheme.highest, "row")
    best, least = widest, torch.full_like(widest, float("inf"))
    for part in FRACTIONS[::5]:
        scale = widest * part
        zero = torch.zeros_like(scale)
        error = (numbers_of(codes_of(rows, scale, zero, by_row), scale, zero, by_row) - rows).square().sum(-1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best if scheme.per == "row" else best[0]
