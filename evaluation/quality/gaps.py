"""Gaps between groups of rows: how far each is behind the best one, with intervals.

Groups of one column hold different rows, so their figures are independent, and the interval of a difference follows
from the intervals of the two figures (MOVER, Zou and Donner 2008, Statistics in Medicine 27:1693). Which groups are
best and worst is chosen on the same rows: the intervals are widened for all pairs of groups (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice


@dataclass(frozen=True)
class Gap:
    """The largest difference between two groups. value: best minus worst.  groups: that have a figure.  small: that
    have none, most for too few rows."""

    best: str
    worst: str
    value: Interval
    groups: int
    small: int

    @property
    def is_measurable(self) -> bool:
        """Whether the interval excludes no gap."""
        return self.value.low > 0

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**asdict(self), "is_measurable": self.is_measurable}


def find_largest_gap(groups: Sequence[Slice]) -> Gap | None:
    """The best group against the worst; None with fewer than two groups that have a figure. groups: of one column."""
    known = [s for s in groups if s.value is not None]
    if len(known) < 2:
        return None
    best, worst = max(known, key=_figure), min(known, key=_figure)
    if best is worst:  # all are equal
        worst = next(s for s in known if s is not best)
    value = _subtract(best, worst, len(known))
    return Gap(best.name, worst.name, value, len(known), len(groups) - len(known))


def measure_gaps(groups: Sequence[Slice]) -> list[Interval | None]:
    """For each group, how far it is behind the best one; None for the best, and where there is no figure."""
    known = [s for s in groups if s.value is not None]
    if len(known) < 2:
        return [None] * len(groups)
    best = max(known, key=_figure)
    return [None if s is best or s.value is None else _subtract(best, s, len(known)) for s in groups]


def _figure(group: Slice) -> float:
    assert group.value is not None
    return group.value.value


def _subtract(a: Slice, b: Slice, groups: int) -> Interval:
    """The figure of a minus that of b, with an interval that holds for all pairs of so many groups."""
    x, y = a.value, b.value
    assert x is not None
    assert y is not None
    normal = NormalDist()
    tail = (1 - x.level) / 2
    wider = normal.inv_cdf(1 - tail / math.comb(groups, 2)) / normal.inv_cdf(1 - tail)
    value = x.value - y.value
    down = wider * math.hypot(x.value - x.low, y.high - y.value)
    up = wider * math.hypot(x.high - x.value, y.value - y.low)
    return Interval(value, value - down, value + up, a.rows + b.rows, min(x.resamples, y.resamples))
