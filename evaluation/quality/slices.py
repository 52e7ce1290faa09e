"""Slices: how good a model is on groups of rows, and on which of them it fails more than its parent.

The difference to the parent is paired, on the slice's rows. Whether it can be told from chance is McNemar's exact test
where rows are right or wrong, else a normal test with the spread of the paired differences; the p-values are corrected
for the number of slices (Holm 1979). Intervals are 95 % each (`estimates`), not corrected.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.estimates import difference_interval, metric_interval
from evaluation.quality.intervals import Interval, Resamples, resample_figure
from evaluation.quality.multiple import holm
from evaluation.quality.paired import exact_sign_test
from evaluation.quality.shares import count_discordant, paired_share_interval, share_interval

FEWEST = 30
"""Rows below which a slice is named and not tested: its interval would be wider than what anybody looks for."""
LEVEL = 0.05
QUARTERS = ("lowest quarter", "second quarter", "third quarter", "highest quarter")

Figure = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(R, N) numbers of draws of N rows → (R,) figures."""


@dataclass(frozen=True)
class Members:
    """Some rows. by: what rows are told apart by.  inside: (N,) bool, the rows of the group."""

    by: str
    name: str
    inside: NDArray[np.bool_]


@dataclass(frozen=True)
class Answers:
    """A model's answers to N rows. figure: its metric, higher is better.  right: (N,) bool where it is their mean."""

    figure: Figure
    right: NDArray[np.bool_] | None = None


@dataclass(frozen=True)
class Slice:
    """A model on a group of rows. value: its metric.  parent: the parent's.  difference: model minus parent, paired.

    p_value: of no difference.  adjusted: the same, corrected for all slices that were tested.  why: why there is no
    figure; then the others are None.
    """

    by: str
    name: str
    rows: int
    value: Interval | None = None
    parent: float | None = None
    difference: Interval | None = None
    p_value: float | None = None
    adjusted: float | None = None
    why: str = ""

    @property
    def verdict(self) -> str:
        """`fails more`, `fails less`, `no measurable difference`, or "" where nothing was tested."""
        if self.adjusted is None or self.difference is None:
            return ""
        if self.adjusted >= LEVEL:
            return "no measurable difference"
        return "fails more" if self.difference.value < 0 else "fails less"

    def as_json(self) -> dict[str, Any]:
        """Plain values; `from_json` reads them."""
        return {**asdict(self), "verdict": self.verdict}

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Slice:
        """Raises TypeError or KeyError for what `as_json` did not write."""
        plain = {key: value for key, value in data.items() if key != "verdict"}
        for key in ("value", "difference"):
            if plain[key] is not None:
                plain[key] = Interval(**plain[key])
        return cls(**plain)


def slices(
    groups: Sequence[Members], ours: Answers, theirs: Answers | None = None, *, resamples: int = 1000, seed: int = 0
) -> list[Slice]:
    """One Slice for every group, in their order. theirs: the answers of the parent to the same rows.

    A group with fewer than `FEWEST` rows, or one that gives no figure, says why.
    """
    found = [_one(group, ours, theirs, resamples, seed) for group in groups]
    tested = [i for i, s in enumerate(found) if s.p_value is not None]
    for i, p in zip(tested, holm([float(found[i].p_value or 0.0) for i in tested]), strict=True):
        found[i] = Slice(**{**vars(found[i]), "adjusted": float(p)})
    return found


def find_worse(found: Sequence[Slice]) -> list[Slice]:
    """The slices that the model measurably fails more than its parent, the worst first."""
    failing = [s for s in found if s.verdict == "fails more"]
    return sorted(failing, key=lambda s: s.difference.value if s.difference else 0.0)


def by_value(by: str, values: Sequence[object] | NDArray) -> list[Members]:
    """(N,) values → a group for each, the most frequent first."""
    place: dict[str, int] = {}
    codes = np.array([place.setdefault(str(v), len(place)) for v in values], dtype=np.int64)
    counts = np.bincount(codes, minlength=len(place))
    return [Members(by, name, codes == place[name]) for name in sorted(place, key=lambda n: (-counts[place[n]], n))]


def by_quarter(by: str, values: ArrayLike, *, digits: int = 0) -> list[Members]:
    """(N,) numbers → quarters of the rows with their bounds in the name; equal numbers share one, empty ones are left
    out. One that holds a single number, which may be that of nearly all rows, is called by it, and where all numbers
    are equal, there is no group. Not a number: in none."""
    x = np.asarray(values, dtype=np.float64)
    known = x[np.isfinite(x)]
    if len(np.unique(known)) < 2:
        return []
    which = np.searchsorted(np.quantile(known, [0.25, 0.5, 0.75]), x, side="left")
    found = []
    for number, name in enumerate(QUARTERS):
        inside = (which == number) & np.isfinite(x)
        if inside.any():
            low, high = x[inside].min(), x[inside].max()
            single = f"{low:,.{digits}f}"
            found.append(Members(by, single if low == high else f"{name}, {single} to {high:,.{digits}f}", inside))
    return found


def _one(group: Members, ours: Answers, theirs: Answers | None, resamples: int, seed: int) -> Slice:
    at = np.flatnonzero(group.inside)
    if len(at) < FEWEST:
        return Slice(group.by, group.name, len(at), why=f"fewer than {FEWEST} rows")
    if ours.right is not None and (theirs is None or theirs.right is not None):
        mine = ours.right[at]
        value = share_interval(float(mine.sum()), len(at))
        if theirs is None or theirs.right is None:
            return Slice(group.by, group.name, len(at), value)
        other = theirs.right[at]
        only = count_discordant(mine, other)
        apart = paired_share_interval(*only, len(at))
        return Slice(group.by, group.name, len(at), value, float(other.mean()), apart, exact_sign_test(*only))
    drawn = _resampled(ours.figure, group.inside, at, resamples, seed)
    if not _is_known(drawn):
        return Slice(group.by, group.name, len(at), why="the metric is undefined on these rows")
    found = metric_interval(drawn)
    if theirs is None:
        return Slice(group.by, group.name, len(at), found)
    parent = _resampled(theirs.figure, group.inside, at, resamples, seed)
    both = drawn.minus(parent)
    if not _is_known(both):
        return Slice(group.by, group.name, len(at), found, why="the parent's metric is undefined on these rows")
    apart = difference_interval(both)
    return Slice(group.by, group.name, len(at), found, parent.value, apart, _normal_test(apart.value, both.figures))


def _resampled(figure: Figure, inside: NDArray[np.bool_], at: NDArray[np.intp], resamples: int, seed: int) -> Resamples:
    """The figure of the rows at `at` alone, and of resamples of them: all other rows are drawn no time."""
    step = max(1, 2_000_000 // len(inside))

    def within(weights: NDArray[np.float64]) -> NDArray[np.float64]:
        parts = []
        for start in range(0, len(weights), step):
            part = weights[start : start + step]
            spread = np.zeros((len(part), len(inside)))
            spread[:, at] = part
            parts.append(figure(spread))
        return np.concatenate(parts)

    return resample_figure(len(at), within, resamples=resamples, seed=seed)


def _is_known(drawn: Resamples) -> bool:
    return bool(np.isfinite(drawn.value) and np.isfinite(drawn.figures).any())


def _normal_test(value: float, draws: NDArray[np.float64]) -> float:
    """Two-sided p-value of a difference, with the spread of its resamples as its standard error."""
    spread = float(np.std(draws[np.isfinite(draws)]))
    if spread == 0.0:
        return 1.0 if value == 0.0 else 0.0
    return math.erfc(abs(value) / spread / math.sqrt(2))
