"""Whether a model's probabilities mean what they say: expected calibration error, and temperature scaling.

Guo et al. 2017, arXiv 1706.04599.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.agreement import log_softmax, softmax
from evaluation.quality.intervals import Interval

BINS = 15
COLDEST, HOTTEST = 0.05, 20.0
FOLDS = 5


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


class CalibrationError:
    """Expected calibration error as it follows from draws of rows: (R, N) numbers of draws → (R,) from 0 to 1.

    Σ over equal-width bins of |mean confidence − share right|, weighed by their rows. It is too high on few rows, since
    chance moves every bin away from its confidence, and a bootstrap adds chance once more: `interval` allows for both.
    logits: (N, C).  gold: (N,) classes. Raises ValueError for no rows.
    """

    def __init__(self, logits: ArrayLike, gold: ArrayLike, *, bins: int = BINS) -> None:
        confidence, right, which = _binned(logits, gold, bins)
        self._gaps = np.zeros((len(which), bins))
        self._gaps[np.arange(len(which)), which] = confidence - right
        counts = np.bincount(which, minlength=bins)
        held = counts > 0
        self._counts = counts[held]
        self._confidence = np.bincount(which, confidence, minlength=bins)[held] / self._counts
        self._share_right = np.bincount(which, right, minlength=bins)[held] / self._counts

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(R, N) numbers of draws → (R,) errors."""
        return np.abs(weights @ self._gaps).sum(1) / weights.sum(1)

    def interval(self, *, resamples: int = 1000, seed: int = 0, level: float = 0.95) -> Interval:
        """Of the true error, by inverting a test: it holds the errors under which the observed one is not surprising.

        An error is tried as `scale` times the gap that was observed in every bin, and the right answers of a bin are
        then drawn from a binomial distribution (a parametric bootstrap test; Davison & Hinkley 1997, section 4.2). Of a
        calibrated model it starts at 0. Widened to hold the observed error.
        """
        value = float(np.abs(self._counts * (self._confidence - self._share_right)).sum() / self._counts.sum())
        tail = (1 - level) / 2

        def is_below(scale: float) -> bool:  # so small an error hardly gives as much as was observed
            return float(np.mean(self._simulate(scale, resamples, seed) >= value - 1e-12)) <= tail

        def is_above(scale: float) -> bool:
            return float(np.mean(self._simulate(scale, resamples, seed) <= value + 1e-12)) <= tail

        low = self._error(_find_change(is_below)) if is_below(0.0) else 0.0
        high = 0.0 if is_above(0.0) else self._error(_find_change(lambda scale: not is_above(scale)))
        return Interval(value, min(low, value), max(high, value), int(self._counts.sum()), resamples, level)

    def _shares(self, scale: float) -> NDArray[np.float64]:
        """(B,) true shares of right answers where the gaps are `scale` times the observed ones."""
        return np.clip(self._confidence - scale * (self._confidence - self._share_right), 0.0, 1.0)

    def _error(self, scale: float) -> float:
        return float(self._counts @ np.abs(self._confidence - self._shares(scale)) / self._counts.sum())

    def _simulate(self, scale: float, draws: int, seed: int) -> NDArray[np.float64]:
        """(draws,) errors that may be observed on so many rows."""
        right = np.random.default_rng(seed).binomial(self._counts, self._shares(scale), (draws, len(self._counts)))
        return np.abs(self._counts * self._confidence - right).sum(1) / self._counts.sum()


def _find_change(holds: Callable[[float], bool], most: float = 8.0) -> float:
    """The scale up to which `holds`, by halving [0, most]."""
    low, high = 0.0, most
    for _ in range(16):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return (low + high) / 2


def calibration_error(logits: ArrayLike, gold: ArrayLike, *, bins: int = BINS) -> CalibrationError:
    """`CalibrationError` of (N, C) logits beside (N,) classes."""
    return CalibrationError(logits, gold, bins=bins)


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


class NoTemperatureError(ValueError):
    """No temperature improves the probabilities; the message is the reason."""


@dataclass(frozen=True)
class FittedTemperature:
    """before, after: mean negative log-likelihood (nats) of rows that the temperature was not fitted on, by
    cross-validation, with the temperature that was there and with the fitted one."""

    temperature: float
    before: float
    after: float


def is_bounded(temperature: float) -> bool:
    """Whether it lies inside the range of `fit_temperature`: at an end the likelihood has no maximum on these rows."""
    return COLDEST * 1.01 < temperature < HOTTEST / 1.01


def fit_validated_temperature(
    logits: ArrayLike, gold: ArrayLike, current: float = 1.0, *, seed: int = 0
) -> FittedTemperature:
    """`fit_temperature` of (N, C) logits and (N,) classes, if it lowers the negative log-likelihood of other rows.

    That is measured by cross-validation with `FOLDS` folds, against the temperature `current`. Raises
    NoTemperatureError where it does not, and where the fit ends at an end of the range: of a model that is right on
    (almost) all of these rows any sharper distribution is more likely. Raises ValueError for fewer rows than folds.
    """
    z, y = np.asarray(logits, np.float64), np.asarray(gold)
    if len(y) < FOLDS:
        raise ValueError(f"{len(y)} rows cannot be split into {FOLDS} folds")
    fitted = fit_temperature(z, y)
    if not is_bounded(fitted):
        right = int((z.argmax(-1) == y).sum())
        raise NoTemperatureError(
            f"the likelihood has no maximum between {COLDEST:g} and {HOTTEST:g} on these {len(y):,} rows, of which the "
            f"model answers {right:,} right"
        )
    fold = np.random.default_rng(seed).permutation(len(y)) % FOLDS
    losses = []
    for k in range(FOLDS):
        out = fold == k
        temperature = fit_temperature(z[~out], y[~out])
        losses.append(out.sum() * negative_log_likelihood(z[out], y[out], temperature))
    before, after = negative_log_likelihood(z, y, current), float(sum(losses)) / len(y)
    if not after < before:
        raise NoTemperatureError(
            f"temperature {fitted:.3f} does not lower the negative log-likelihood of rows that it was not fitted on: "
            f"{before:.4f} before, {after:.4f} after, by {FOLDS}-fold cross-validation"
        )
    return FittedTemperature(fitted, before, after)


def _binned(logits: ArrayLike, gold: ArrayLike, bins: int) -> tuple[NDArray, NDArray, NDArray]:
    """(N,) top probability, whether the answer is right, and its bin."""
    shares, y = softmax(logits), np.asarray(gold)
    if not len(y):
        raise ValueError("no rows to calibrate on")
    confidence = shares.max(-1)
    which = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    return confidence, (shares.argmax(-1) == y).astype(np.float64), which
