"""Exits learn from the model's own answers: knowledge distillation (Hinton et al., 1503.02531) into linear heads.

The model is frozen, so that its answers stay what they are; with soft targets and a linear head the loss is convex.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from evaluation.quality.agreement import softmax

EPOCHS, BATCH, RATE, DECAY = 8, 64, 1e-3, 0.05
FLOOR = 0.25
"""Of the median deviation, how much each state is taken to have at least: BERT models have states that are large and
almost constant, whose rounding a head would else multiply a thousand times."""
STEPS = 500
"""Of the optimizer, at least: few rows are seen more often."""


def train_exit(states: np.ndarray, logits: np.ndarray, seed: int) -> nn.Linear:
    """(2 D → C), on the CPU: cross-entropy to the probabilities of the model, AdamW.

    states: (N, 2 D) of training rows.  logits: (N, C) of the model itself on them.
    """
    mean, deviation = states.mean(0), states.std(0)
    deviation = np.maximum(deviation, FLOOR * np.median(deviation) + 1e-6)
    x = torch.from_numpy((states - mean) / deviation)
    targets = torch.from_numpy(softmax(logits)).float()
    head = nn.Linear(x.shape[1], targets.shape[1])
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimizer = torch.optim.AdamW(head.parameters(), RATE, weight_decay=DECAY)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(max(EPOCHS, -(-STEPS // -(-len(x) // BATCH)))):
        for rows in torch.randperm(len(x), generator=generator).split(BATCH):
            optimizer.zero_grad()
            loss = -(targets[rows] * head(x[rows]).log_softmax(-1)).sum(-1).mean()
            loss.backward()
            optimizer.step()
    return _fold(head, torch.from_numpy(mean), torch.from_numpy(deviation))


@torch.no_grad()
def _fold(head: nn.Linear, mean: torch.Tensor, deviation: torch.Tensor) -> nn.Linear:
    """The same of states that are not standardized."""
    head.weight.div_(deviation)
    head.bias.sub_(head.weight @ mean)
    return head.requires_grad_(False)


@torch.no_grad()
def scale_logits(head: nn.Linear, factor: float) -> None:
    """Multiply what a head answers, in place."""
    head.weight.mul_(factor)
    head.bias.mul_(factor)


def answer(head: nn.Linear, states: np.ndarray) -> np.ndarray:
    """(N, 2 D) → (N, C) logits."""
    with torch.inference_mode():
        return head(torch.from_numpy(states)).numpy()
