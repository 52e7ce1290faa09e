"""What was observed of an activation, in bins that widen as the range grows, and ranges chosen by it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from compress.contracts import Scheme
from compress.quantizers._rounding import SMALLEST, codes_of, numbers_of

HALF = 4096
"""Bins on either side of zero. The widest value lies in the outer half of them, so a bin is at most 1/2048 of it."""
FRACTIONS = tuple(k / 100 for k in range(100, 9, -1))
"""Of the observed range, tried as the range that is kept."""


class Histogram:
    """Counts of values, in 2 * HALF equal bins over -reach..reach; reach doubles when a value lies beyond it.

    Doubling joins bins two by two, so counts stay exact, and one pass over the data is enough. low, high: exact.
    """

    def __init__(self) -> None:
        self.counts = torch.zeros(2 * HALF, dtype=torch.float64)
        self.reach, self.low, self.high, self.finite = 0.0, 0.0, 0.0, True

    @property
    def empty(self) -> bool:
        """Whether nothing was added."""
        return self.reach == 0.0

    def add(self, x: Tensor) -> None:
        """Count every number of x."""
        if not x.numel():
            return
        x = x.float()
        ends = torch.stack(torch.aminmax(x))
        if not bool(torch.isfinite(ends).all()):
            self.finite = False
            return
        low, high = ends.tolist()
        self.low, self.high = (low, high) if self.empty else (min(self.low, low), max(self.high, high))
        self._widen(max(abs(low), abs(high), SMALLEST))
        places = ((x.flatten() / self.reach + 1) * HALF).long().clamp_(0, 2 * HALF - 1)
        self.counts += torch.bincount(places, minlength=2 * HALF).double().cpu()

    def _widen(self, widest: float) -> None:
        if self.empty:
            self.reach = widest
        while self.reach < widest:
            joined = self.counts.view(-1, 2).sum(1)
            self.counts = torch.zeros_like(self.counts)
            self.counts[HALF // 2 : HALF + HALF // 2] = joined
            self.reach *= 2

    @property
    def centers(self) -> Tensor:
        """(2 * HALF,) fp32: the middle of each bin."""
        return ((torch.arange(2 * HALF, dtype=torch.float64) + 0.5) / HALF - 1).mul(self.reach).float()

    def percentile(self, percent: float) -> tuple[float, float]:
        """The range that leaves out 100 - percent % of the values at either end."""
        share, left = self.counts.cumsum(0) / self.counts.sum(), 1 - percent / 100
        low = int(torch.searchsorted(share, left))
        high = min(int(torch.searchsorted(share, 1 - left)), 2 * HALF - 1)
        width = self.reach / HALF
        return max(self.low, low * width - self.reach), min(self.high, (high + 1) * width - self.reach)


def scale_for(low: float, high: float, scheme: Scheme) -> tuple[Tensor, Tensor]:
    """Scale and zero point () fp32 with which the codes of `scheme` cover low..high and hit zero."""
    low, high = min(low, 0.0), max(high, 0.0)
    if scheme.signed:
        scale = max(high / scheme.highest, -low / -scheme.lowest, SMALLEST)
        return torch.tensor(scale, dtype=torch.float32), torch.tensor(0.0)
    scale = torch.tensor(max((high - low) / scheme.highest, SMALLEST), dtype=torch.float32)
    return scale, torch.round(-low / scale).clamp(scheme.lowest, scheme.highest)


def least_square(seen: Histogram, scheme: Scheme) -> tuple[float, float]:
    """The range with the least squared error of rounding and clamping together."""
    used = seen.counts > 0
    centers, counts = seen.centers[used], seen.counts[used]

    def error(low: float, high: float) -> float:
        return float((counts * (_rounded(centers, low, high, scheme) - centers).double().square()).sum())

    return _best(seen, error)


def least_divergence(seen: Histogram, scheme: Scheme) -> tuple[float, float]:
    """The range whose rounded values are distributed most alike to all values clamped into it, by KL divergence.

    As TensorRT calibrates: what lies beyond counts at the ends of the one, and not at all in the other.
    """
    centers, counts = seen.centers, seen.counts

    def divergence(low: float, high: float) -> float:
        inside = (centers >= low) & (centers <= high)
        if int(inside.sum()) < 2:
            return float("inf")
        raw = counts[inside]
        p = raw.clone()
        p[0] += counts[centers < low].sum()
        p[-1] += counts[centers > high].sum()
        scale, zero = scale_for(low, high, scheme)
        codes = codes_of(centers[inside], scale, zero, scheme).long() - scheme.lowest
        filled = (raw > 0).double()
        size = scheme.highest - scheme.lowest + 1
        total = torch.bincount(codes, weights=raw, minlength=size)
        bins = torch.bincount(codes, weights=filled, minlength=size).clamp_min(1)
        q = (total / bins)[codes] * filled
        p, q = p / p.sum(), (q / q.sum().clamp_min(SMALLEST)).clamp_min(1e-12)
        return float(torch.special.xlogy(p, p / q).sum())

    return _best(seen, divergence)


def _best(seen: Histogram, cost: Callable[[float, float], float]) -> tuple[float, float]:
    """The cheapest of the ranges tried; of equals the widest."""
    return min(_ranges(seen), key=lambda ends: cost(*ends))


def _ranges(seen: Histogram) -> Iterator[tuple[float, float]]:
    yield from ((seen.low * part, seen.high * part) for part in FRACTIONS)


def _rounded(x: Tensor, low: float, high: float, scheme: Scheme) -> Tensor:
    scale, zero = scale_for(low, high, scheme)
    return numbers_of(codes_of(x, scale, zero, scheme), scale, zero, scheme)
