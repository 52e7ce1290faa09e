"""Whether a model's probabilities mean what they say: expected calibration error, and temperature scaling.

Guo et al. 2017, arXiv 1706.04599.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.agreement import log_softmax, softmax

BINS = 15
COLDEST, HOTTEST = 0.05, 20.0


@dataclass(frozen=True)
class Bin:
    """Rows whose top probability lies in (low, high]. confidence, accuracy: their means, NaN where there is no row."""

    low: float
    high: float
    rows: int
    confidence: float
    accuracy: float


def reliability(logits: ArrayLike, gold: ArrayLike, *, bins: int = BINS) -> list[Bin]:
    """(N, C) logits beside (N,) classes → what a reliability plot shows. Raises ValueError for no rows."""
    confidence, right, which = _binned(logits, gold, bins)
    found = []
    for i in range(bins):
        inside = which == i
        count = int(inside.sum())
        means = (float(x[inside].mean()) if count else float("nan") for x in (confidence, right))
        found.append(Bin(i / bins, (i + 1) / bins, count, *means))
    return found


def calibration_error(
    logits: ArrayLike, gold: ArrayLike, *, bins: int = BINS
) -> Callable[[NDArray[np.float64]], NDArray[np.float64]]:
    """Expected calibration error as it follows from draws of rows: (R, N) numbers of draws → (R,) from 0 to 1.

    Σ over equal-width bins of |mean confidence − share right|, weighed by their rows. Raises ValueError for no rows.
    """
    confidence, right, which = _binned(logits, gold, bins)
    gaps = np.zeros((len(which), bins))
    gaps[np.arange(len(which)), which] = confidence - right

    def figure(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.abs(weights @ gaps).sum(1) / weights.sum(1)

    return figure


def negative_log_likelihood(logits: ArrayLike, gold: ArrayLike, temperature: float = 1.0) -> float:
    """Mean −log softmax(logits / T)[gold], in nats."""
    z, y = np.asarray(logits, np.float64), np.asarray(gold)
    return float(-log_softmax(z / temperature)[np.arange(len(y)), y].mean())


def fit_temperature(logits: ArrayLike, gold: ArrayLike) -> float:
    """The temperature from 0.05 to 20 with the least negative log-likelihood; it changes no answer.

    The likelihood has one maximum in 1/T (it is concave there), so a golden-section search finds it. Raises ValueError
    for no rows.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(gold)
    if not len(y):
        raise ValueError("no rows to fit a temperature on")
    low, high = 1 / HOTTEST, 1 / COLDEST
    ratio = (5**0.5 - 1) / 2
    left, right = high - ratio * (high - low), low + ratio * (high - low)
    values = [negative_log_likelihood(z, y, 1 / x) for x in (left, right)]
    while high - low > 1e-5 * low:
        if values[0] < values[1]:
            high, right, values[1] = right, left, values[0]
            left = high - ratio * (high - low)
            values[0] = negative_log_likelihood(z, y, 1 / left)
        else:
            low, left, values[0] = left, right, values[1]
            right = low + ratio * (high - low)
            values[1] = negative_log_likelihood(z, y, 1 / right)
    # The search comes near an end of the range and never to it.
    return float(min((2 / (low + high), COLDEST, HOTTEST), key=lambda t: negative_log_likelihood(z, y, t)))


def _binned(logits: ArrayLike, gold: ArrayLike, bins: int) -> tuple[NDArray, NDArray, NDArray]:
    """(N,) top probability, whether the answer is right, and its bin."""
    shares, y = softmax(logits), np.asarray(gold)
    if not len(y):
        raise ValueError("no rows to calibrate on")
    confidence = shares.max(-1)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return confidence, (shares.argmax(-1) == y).astype(np.float64), which
