"""Hard-concrete gates: random numbers from 0 to 1, most of them at an end, with a slope (Louizos et al., arXiv
1712.01312)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

BETA, LOW, HIGH = 2 / 3, -0.1, 1.1
"""Temperature, and the interval that the concrete distribution is stretched to, as in the paper."""
OPEN = 2.0
"""Logit that a gate starts from: open with 97 %."""


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """A gate for each logit, drawn on the CPU."""
    u = torch.rand(logits.shape, generator=generator).clamp(1e-6, 1 - 1e-6).to(logits.device)
    return _stretched(torch.sigmoid((u.logit() + logits) / BETA))


def chance(logits: Tensor) -> Tensor:
    """That a gate is not 0."""
    return torch.sigmoid(logits - BETA * math.log(-LOW / HIGH))


def compute_final_gate(logits: Tensor) -> Tensor:
    """What a gate is when nothing is drawn any more."""
    return _stretched(torch.sigmoid(logits))


def _stretched(x: Tensor) -> Tensor:
    return (x * (HIGH - LOW) + LOW).clamp(0, 1)
