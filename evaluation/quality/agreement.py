"""How alike two models answer, whatever the labels say: fidelity of a student to its teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval, bootstrap_mean


@dataclass(frozen=True)
class Agreement:
    """same: share of rows with the same top class.  kl: mean KL(reference || model) in nats."""

    same: Interval
    kl: float


def agreement(
    model_logits: ArrayLike, reference_logits: ArrayLike, *, resamples: int = 1000, seed: int = 0
) -> Agreement:
    """Compare (rows, C) logits of two models. Raises ValueError when the shapes differ."""
    model, reference = np.asarray(model_logits, np.float64), np.asarray(reference_logits, np.float64)
    if model.shape != reference.shape:
        raise ValueError(f"logits of shape {model.shape} cannot be compared with {reference.shape}")
    same = (model.argmax(-1) == reference.argmax(-1)).astype(float)
    log_p, log_q = log_softmax(reference), log_softmax(model)
    kl = float((np.exp(log_p) * (log_p - log_q)).sum(-1).mean())
    return Agreement(bootstrap_mean(same, resamples=resamples, seed=seed), kl)


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, C) log-probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
