"""The stated confidence of a cascade holds over many draws of validation rows; one standard error is too little."""

from __future__ import annotations

import numpy as np

from evaluation.cascade import CascadeTrial, ScoredExits, ScoredModels
from evaluation.learn_then_test import draw_proposing
from evaluation.thresholds import CascadeChoice, choose_cascade

DRAWS, ROWS, BOUND = 120, 600, 1.5
FALL = (0.12, 0.06)
"""Of the first and the second exit, how fast the chance to lose a row falls with the confidence: rows that are sure
are never lost."""


def draw_exits(seed: int) -> ScoredExits:
    """Two exits, each confident evenly from 0.5 to 1, and a model that is always right."""
    generator = np.random.default_rng(seed)
    confidence = generator.uniform(0.5, 1, (3, ROWS))
    fall = np.array([[FALL[0]], [FALL[1]], [0.0]])
    right = generator.uniform(size=(3, ROWS)) >= fall * (1 - confidence)
    return ScoredExits(confidence, right, np.array([1.0, 3.0, 10.0]), np.zeros(3), [""] * 3)


def compute_true_loss(choice: CascadeChoice) -> float:
    """Points that are lost on infinitely many rows: of an exit, the integral of its chance over the confidences above
    its threshold, for the rows that reach it."""
    reached, loss = 1.0, 0.0
    for exit, threshold in zip(choice.models, choice.thresholds, strict=False):
        threshold = max(threshold, 0.5)
        loss += reached * FALL[exit] * (1 - threshold) ** 2
        reached *= 2 * (threshold - 0.5)
    return 100 * loss


def choose_by_standard_error(models: ScoredModels) -> CascadeChoice:
    """The rule of version 0.1: of all thresholds, the fastest whose loss on all rows plus one standard error is within
    the bound."""
    best = CascadeChoice((2,), (), np.inf, (), 0, 0)
    for chain in models.list_cascades():
        trial = CascadeTrial(models, chain, 2)
        loss = (trial.lost - trial.gained) / ROWS
        error = np.sqrt(((trial.lost + trial.gained + 1) / ROWS - loss**2) / ROWS)
        ms = np.where(100 * (loss + error) <= BOUND, trial.ms, np.inf)
        place = np.unravel_index(ms.argmin(), ms.shape)
        if ms[place] < best.ms:
            best = CascadeChoice(chain, trial.read_thresholds(place), float(ms[place]), (), 0, 0)
    return best


def test_the_true_loss_is_above_the_bound_as_seldom_as_stated() -> None:
    ours, theirs = [], []
    for seed in range(DRAWS):
        models = draw_exits(seed)
        ours.append(choose_cascade(models, 2, BOUND, draw_proposing(ROWS, seed)).choice)
        theirs.append(choose_by_standard_error(models))
    beyond, before = (np.mean([compute_true_loss(c) > BOUND for c in found]) for found in (ours, theirs))
    assert beyond <= 0.1, "the confidence is 90 %"
    assert before > 0.2
    faster = [choice.ms for choice in ours if len(choice.models) > 1]
    assert len(faster) > DRAWS / 2, "a rule that never chooses a cascade would be of no use"
    assert np.mean(faster) < 9.5
