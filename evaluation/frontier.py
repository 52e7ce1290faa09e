"""The Pareto frontier of quality, latency and size, with the uncertainty of quality taken into account.

A model is dominated by another that is no larger, no slower and no worse: in quality the lower end of the interval of
the difference must not lie below zero. The interval is the paired one where both models' figures on the same resamples
of the same rows are there; else the two intervals must not overlap, which asks for more. A model that is right on the
same rows counts as equal, whatever the interval of no difference: of two such models the cheaper one dominates.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.pairing import ResampledMetric

TOLERANCE = 0.05
"""Share by which two latencies may differ and count as equal: timing one model twice differs by as much."""
Z = 1.959964
"""97.5 % quantile of the normal distribution."""
BLOCK = 32  # rivals compared at once, the best first: most rows are dominated by one of the first


@dataclass(frozen=True)
class Candidate:
    """A measured model. quality, low, high: with its 95 % interval, more is better.  size, latency: less is better.

    data: what quality was measured on, by which metric.  conditions: what latency was measured under; of models with
    others, or where a latency is None, nothing is said about which is faster, so neither dominates the other.
    figures: of quality on resamples, if they were kept.  shape: all that decides how fast a model is; two of one shape
    are equally fast, whatever was timed.
    """

    quality: float
    low: float
    high: float
    size: float
    latency: float | None
    data: Hashable
    conditions: Hashable = None
    figures: ResampledMetric | None = None
    shape: Hashable = None


@dataclass(frozen=True)
class Verdict:
    """by: place of a model that dominates this one, None where none does.  paired: the interval that said so is the
    paired one.  unpaired: how many rivals could be compared with it by unpaired intervals only.  rival: where none
    dominates it, place of one that would if the figures were exact: more test rows may tell."""

    by: int | None = None
    paired: bool = False
    unpaired: int = 0
    rival: int | None = None


def frontier(candidates: Sequence[Candidate], *, tolerance: float = TOLERANCE) -> list[Verdict]:
    """What each of N models is dominated by. tolerance: latencies within this share of each other count as equal.

    At least one model is always left on the frontier. Raises ValueError where a figure is not finite.
    """
    n = len(candidates)
    if not n:
        return []
    numbers = np.array([[c.quality, c.low, c.high, c.size] for c in candidates], dtype=np.float64)
    latency = np.array([np.nan if c.latency is None else c.latency for c in candidates], dtype=np.float64)
    if not np.isfinite(numbers).all() or np.isinf(latency).any():
        raise ValueError("a frontier needs finite figures")
    rivals = _Rivals(candidates, numbers, latency, tolerance)
    return [rivals.verdict(i) for i in range(n)]


class _Rivals:
    def __init__(
        self, candidates: Sequence[Candidate], numbers: NDArray[np.float64], latency: NDArray, tolerance: float
    ) -> None:
        self.quality, self.low, self.high, self.size = numbers.T
        self.latency, self.tolerance = latency, tolerance
        self.data = _codes([c.data for c in candidates])
        self.conditions = _codes([c.conditions for c in candidates])
        self.draws = _codes([None if c.figures is None else c.figures.key for c in candidates])
        self.draws[[c.figures is None for c in candidates]] = -1
        self.figures = [c.figures for c in candidates]
        self.shape = _codes([c.shape for c in candidates])
        self.shape[[c.shape is None for c in candidates]] = -1

    def verdict(self, i: int) -> Verdict:
        """Of candidate `i`."""
        alike = (self.shape == self.shape[i]) & (self.shape[i] >= 0)
        faster = ~alike & (self.latency * (1 + self.tolerance) < self.latency[i])  # by more than chance
        no_slower = alike | (self.latency <= self.latency[i] * (1 + self.tolerance))
        could = (self.size <= self.size[i]) & no_slower & (self.quality >= self.quality[i])
        could &= (self.data == self.data[i]) & (self.conditions == self.conditions[i])
        could[i] = False
        cheaper = (self.size < self.size[i]) | faster
        rivals = np.flatnonzero(could)
        rivals = rivals[np.argsort(-self.quality[rivals], kind="stable")]
        pairable = (self.draws[rivals] == self.draws[i]) & (self.draws[i] >= 0)
        for start in range(0, len(rivals), BLOCK):
            part, able = rivals[start : start + BLOCK], pairable[start : start + BLOCK]
            least = np.where(able, 0.0, self.low[part] - self.high[i])
            if able.any():
                least[able] = self._paired_low(part[able], i)
            beaten = (least > 0) | ((least == 0) & cheaper[part])
            if beaten.any():
                first = int(np.argmax(beaten))
                return Verdict(int(part[first]), bool(able[first]))
        ahead = rivals[cheaper[rivals] | (self.quality[rivals] > self.quality[i])]
        return Verdict(unpaired=int((~pairable).sum()), rival=int(ahead[0]) if len(ahead) else None)

    def _paired_low(self, rivals: NDArray[np.intp], i: int) -> NDArray[np.float64]:
        """(len(rivals),) with the signs of the lower ends of the paired 95 % intervals of their quality minus that of
        `i`; 0 where nothing tells the two apart: no row, of a share of rows, else no resample."""
        own = self.figures[i]
        assert own is not None
        theirs = [f for r in rivals if (f := self.figures[r]) is not None]
        right = [f.right for f in theirs if f.right is not None]
        if own.right is not None and len(right) == len(theirs):
            stacked = np.stack(right)
            wins, losses = (stacked & ~own.right).sum(1), (own.right & ~stacked).sum(1)
            # `paired_share_interval` lies above 0 exactly where McNemar's statistic is beyond its critical value.
            return (wins - losses) - Z * np.sqrt(wins + losses)
        apart = np.stack([f.figures for f in theirs]) - own.figures
        if not np.isnan(apart).any():
            return np.quantile(apart, 0.025, axis=1)
        return np.nan_to_num(np.nanquantile(apart, 0.025, axis=1), nan=-np.inf)


def _codes(values: Sequence[Hashable]) -> NDArray[np.int64]:
    """(N,) a number for each different value."""
    known: dict[Hashable, int] = {}
    return np.array([known.setdefault(v, len(known)) for v in values], dtype=np.int64)
