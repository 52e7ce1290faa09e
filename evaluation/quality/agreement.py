"""How alike two models answer, whatever the labels say: fidelity of a student to its teacher."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval
from evaluation.quality.shares import share_interval


@dataclass(frozen=True)
class Agreement:
    """same: share of rows with the same top class.  kl: mean KL(reference || model) in nats."""

    same: Interval
    kl: float


def agreement(model_logits: ArrayLike, reference_logits: ArrayLike) -> Agreement:
    """Compare (rows, C) logits of two models. Raises ValueError when the shapes differ, or on no rows."""
    model, reference = np.asarray(model_logits, np.float64), np.asarray(reference_logits, np.float64)
    if model.shape != reference.shape:
        raise ValueError(f"logits of shape {model.shape} cannot be compared with {reference.shape}")
    same = model.argmax(-1) == reference.argmax(-1)
    return Agreement(share_interval(float(same.sum()), len(same)), float(divergence(model, reference).mean()))


def divergence(model_logits: ArrayLike, reference_logits: ArrayLike) -> NDArray[np.float64]:
    """(rows,) KL(reference || model) in nats of (rows, C) logits."""
    log_p = log_softmax(np.asarray(reference_logits, np.float64))
    log_q = log_softmax(np.asarray(model_logits, np.float64))
    return (np.exp(log_p) * (log_p - log_q)).sum(-1)


def bernoulli_divergence(model_logits: ArrayLike, reference_logits: ArrayLike) -> NDArray[np.float64]:
    """(rows, C) KL(reference || model) in nats of labels that apply or not, each by its own logit."""
    z, t = np.asarray(model_logits, np.float64), np.asarray(reference_logits, np.float64)
    return divergence(np.stack([z, np.zeros_like(z)], -1), np.stack([t, np.zeros_like(t)], -1))


def softmax(logits: ArrayLike) -> NDArray[np.float64]:
    """(rows, C) probabilities, each row summing to 1."""
    return np.exp(log_softmax(np.asarray(logits, np.float64)))


def sigmoid(logits: ArrayLike) -> NDArray[np.float64]:
    """(rows, C) probabilities, each on its own."""
    z = np.asarray(logits, np.float64)
    return np.exp(-np.logaddexp(0.0, -z))


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    """(rows, C) log-probabilities."""
    shifted = logits - logits.max(-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
