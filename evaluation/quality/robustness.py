"""Quality against how much the input is disturbed, on the same rows at every strength."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from evaluation.quality.estimates import estimate_difference, estimate_metric
from evaluation.quality.intervals import Interval

Figure = Callable[[np.ndarray], np.ndarray]
"""(R, N) numbers of draws of N rows → (R,) figures."""


@dataclass(frozen=True)
class Point:
    """A model under input that is disturbed by `rate`. values: metric → figure with interval.

    lost: the main metric on undisturbed input minus here, on the same draws of the same rows. undefined: metrics that
    these rows give no figure of. figures: what the values were resampled from.
    """

    rate: float
    values: Mapping[str, Interval]
    lost: Interval | None
    undefined: tuple[str, ...] = ()
    figures: Mapping[str, Figure] = field(default_factory=dict, repr=False, compare=False)


def robustness(
    rows: int,
    answer: Callable[[float], Mapping[str, Figure]],
    rates: Sequence[float],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> list[Point]:
    """The curve of a model. answer: rate → its metrics on `rows` rows disturbed that much, the main one first.

    Rates must rise from 0, the undisturbed input. Raises ValueError otherwise.
    """
    if not rates or rates[0] != 0 or list(rates) != sorted(set(rates)):
        raise ValueError(f"rates must rise from 0, found {list(rates)}")
    points, clean = [], {}
    for rate in rates:
        figures = dict(answer(rate))
        values = {
            name: estimate_metric(rows, f, resamples=resamples, seed=seed)
            for name, f in figures.items()
            if _is(f, rows)
        }
        clean = clean or figures
        main = next(iter(clean), None)
        lost = None
        if main in values and _is(clean[main], rows):
            lost = Interval(0.0, 0.0, 0.0, rows, 0)  # of undisturbed input against itself
            if rate > 0:
                lost = estimate_difference(rows, clean[main], figures[main], resamples=resamples, seed=seed)
        points.append(Point(rate, values, lost, tuple(name for name in figures if name not in values), figures))
    return points


def differences(
    rows: int, ours: Sequence[Point], theirs: Sequence[Point], metric: str, *, resamples: int = 1000, seed: int = 0
) -> list[Interval | None]:
    """`metric` of one model minus another's at each rate, paired row by row (`estimates.estimate_difference`).

    Both must have read the same `rows` rows, disturbed alike. None where the metric is undefined for one of them.
    Raises ValueError when the rates differ.
    """
    if [p.rate for p in ours] != [p.rate for p in theirs]:
        raise ValueError("a paired difference needs the same rates")
    found: list[Interval | None] = []
    for our, their in zip(ours, theirs, strict=True):
        if metric not in our.values or metric not in their.values:
            found.append(None)
            continue
        a, b = our.figures[metric], their.figures[metric]
        found.append(estimate_difference(rows, a, b, resamples=resamples, seed=seed))
    return found


def _is(figure: Figure, rows: int) -> bool:
    """Whether the figure is defined on the rows as they are (a correlation of equal answers is not)."""
    return bool(np.isfinite(figure(np.ones((1, rows)))[0]))
