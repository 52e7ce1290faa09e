"""Selects the heads and neurons to keep: by the highest scores, or jointly by the smallest loss."""

from __future__ import annotations

import torch
from torch import Tensor

from compress.contracts import WidthScores
from compress.encoder.modules.gates import Widths
from compress.encoder.reshape.cut import Indices, KeptUnits
from compress.stages.prune_width.costs import Counts

CANDIDATES = 64
"""Of each side, of an exchange: those that would lower the sum most alone."""


def select_highest(scores: WidthScores, counts: Counts) -> KeptUnits:
    """Of equal scores the earlier stay."""
    return KeptUnits(
        tuple(find_highest(x, n) for x, n in zip(scores.heads, counts.heads, strict=True)),
        tuple(find_highest(x, n) for x, n in zip(scores.neurons, counts.neurons, strict=True)),
    )


def exchange_units(kept: KeptUnits, gradients: Widths) -> KeptUnits:
    """Within each unit, exchanges of one that stays for one that goes while they lower E[(sum of what goes' slopes)²].

    gradients: (rows, n) of each unit.  That is mᵀ F m for the mask m of what goes and the unit's whole Fisher matrix F,
    of which `select_highest` reads the diagonal alone (arXiv 2204.09656, section 4.2).
    """
    return KeptUnits(
        tuple(_exchanged(k, g) for k, g in zip(kept.heads, gradients.heads, strict=True)),
        tuple(_exchanged(k, g) for k, g in zip(kept.neurons, gradients.neurons, strict=True)),
    )


def find_highest(scores: Tensor, count: int) -> Indices:
    """The places of the highest, ascending; of equal ones the earlier."""
    return tuple(sorted(scores.argsort(descending=True, stable=True)[:count].tolist()))


def _exchanged(kept: Indices, gradients: Tensor) -> Indices:
    n = gradients.shape[1]
    stays = torch.zeros(n, dtype=torch.bool)
    stays[list(kept)] = True
    if bool(stays.all()):
        return kept
    fisher = gradients.T @ gradients / len(gradients)
    own = fisher.diagonal()
    along = fisher @ (~stays).double()  # F m
    for _ in range(n):
        goes, left = (~stays).nonzero()[:, 0], stays.nonzero()[:, 0]
        goes = goes[(own - 2 * along)[goes].argsort()[:CANDIDATES]]
        left = left[(own + 2 * along)[left].argsort()[:CANDIDATES]]
        change = (own - 2 * along)[goes][:, None] + (own + 2 * along)[left] - 2 * fisher[goes[:, None], left]
        place = int(change.argmin())
        if float(change.flatten()[place]) >= -1e-12 * float(own.mean()):
            break
        back, out = int(goes[place // len(left)]), int(left[place % len(left)])
        stays[back], stays[out] = True, False
        along += fisher[:, out] - fisher[:, back]
    return tuple(stays.nonzero()[:, 0].tolist())
