"""Steps that are trained: where they start from, and the factor of their gradient."""

from __future__ import annotations

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

from compress.contracts import Scheme
from compress.quantizers._histogram import FRACTIONS
from compress.quantizers._rounding import SMALLEST, codes_of, numbers_of, round_scale


def full(bits: int, per: str, group: int | None = None, scale_bits: int = 32) -> Scheme:
    """Every code there is: -8..7 of 4 bits, as LSQ has them."""
    half = 2 ** (bits - 1)
    return Scheme(bits, -half, half - 1, per, group, scale_bits=scale_bits)  # pyright: ignore[reportArgumentType]


def gradient_factor(count: int, scheme: Scheme) -> float:
    """1 / sqrt(N Qp): N numbers share the step, Qp is the greatest code (1902.08153 §2.2)."""
    return (count * scheme.highest) ** -0.5


def split_groups(x: Tensor, group: int) -> Tensor:
    """x (.., K) → (.., ⌈K / group⌉, group), filled up with zeros."""
    return F.pad(x, (0, -x.shape[-1] % group)).unflatten(-1, (-1, group))


@torch.no_grad()
def fit_scale(x: Tensor, scheme: Scheme) -> Tensor:
    """The symmetric scale with the least squared error, among parts of max|x| / highest: (..) per row of x (.., K),
    (.., ⌈K / group⌉) per group, else ()."""
    x = x.float()
    if scheme.per == "group":
        assert scheme.group is not None
        rows = split_groups(x, scheme.group)
    else:
        rows = x if scheme.per == "row" else x.reshape(1, -1)
    widest = rows.abs().amax(-1).clamp_min(SMALLEST) / scheme.highest
    by_row = dataclasses.replace(scheme, per="row", group=None)
    best, least = round_scale(widest, scheme), torch.full_like(widest, float("inf"))
    for part in FRACTIONS[::5]:
        scale = round_scale(widest * part, scheme)
        zero = torch.zeros_like(scale)
        error = numbers_of(codes_of(rows, scale, zero, by_row), scale, zero, by_row).sub_(rows).square_().sum(-1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best[0] if scheme.per == "tensor" else best
