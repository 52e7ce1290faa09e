"""Shared by importances: the matrices of a unit and per-head and per-neuron scores."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from compress.contracts import WidthScores
from compress.encoder.modules.gates import Widths
from compress.encoder.modules.layers import Attention, FeedForward
from compress.encoder.modules.model import Model
from compress.encoder.modules.tied import dense_weight
from compress.encoder.reshape.basis import copy_plain
from compress.encoder.reshape.cut import OUTPUTS, unit_modules


def scores(gradients: Widths, reduce: Callable[[Tensor], Tensor]) -> WidthScores:
    """reduce: (rows, n) → (n,), of each unit."""
    return WidthScores([reduce(x) for x in gradients.heads], [reduce(x) for x in gradients.neurons])


def compute_joint_losses(gradients: Tensor, scores: Tensor) -> Tensor:
    """(n+1,) half the mean square, over rows, of the sum of what goes' slopes, with 0..n of the highest scores kept.

    gradients: (rows, n).  The rise of the loss to second order with all that goes gone at once: slopes of one sign add
    up, which the sum of single rises does not see. A unit that loses more never counts as losing less.
    """
    lowest = scores.argsort(descending=True, stable=True).flip(0)
    rises = gradients[:, lowest].cumsum(1).square().mean(0) / 2
    return torch.cat([rises.new_zeros(1), rises]).cummax(0).values.flip(0)


def by_unit(
    model: Model, of_heads: Callable[[int, Attention], Tensor], of_neurons: Callable[[int, FeedForward], Tensor]
) -> WidthScores:
    """Sums over the modules of each unit; the functions are given the unit's number and the module."""
    found: list[dict[int, Tensor]] = [{}, {}]
    for place, (part, score) in enumerate((("attention", of_heads), ("feed_forward", of_neurons))):
        for unit, module in unit_modules(model, part):
            value = score(unit, module)  # pyright: ignore[reportArgumentType]
            found[place][unit] = found[place][unit] + value if unit in found[place] else value
    heads, neurons = ([part[unit] for unit in sorted(part)] for part in found)
    return WidthScores(heads, neurons)


def sum_incoming_squares(module: FeedForward) -> Tensor:
    """(F,) sums of squares of what makes each neuron, its gate included."""
    rows = copy_plain(dense_weight(module.up)).square().sum(1)
    return rows.view(2, -1).sum(0) if module.gated else rows


def readers(model: Model) -> Tensor:
    """(D,) sums of squares of what reads each channel of the hidden states, over all layers."""
    total = torch.zeros(model.config.hidden, dtype=torch.float64)
    for _, module in unit_modules(model, "attention"):
        assert isinstance(module, Attention)
        for part in (module.query, module.key, module.value):
            total += copy_plain(dense_weight(part)).square().sum(0)
    for _, module in unit_modules(model, "feed_forward"):
        assert isinstance(module, FeedForward)
        total += copy_plain(dense_weight(module.up)).square().sum(0)
    return total


def writers(model: Model) -> Tensor:
    """(D,) sums of squares of what writes each channel of the hidden states, over all layers."""
    total = torch.zeros(model.config.hidden, dtype=torch.float64)
    for part, name in OUTPUTS.items():
        for _, module in unit_modules(model, part):
            matrix: Any = getattr(module, name)
            total += copy_plain(dense_weight(matrix)).square().sum(1)
    return total
