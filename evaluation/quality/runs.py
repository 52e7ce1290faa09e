"""Several runs of a way to train (a seed each): the difference of two ways, and the least gain that so many runs find.

Rows and runs are both a sample. One run says which of two models is better on these rows, never which way to train is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval

Weighted = Callable[[NDArray[np.float64]], NDArray[np.float64]]
"""(R, rows) numbers of draws of each row → (R,) figures."""


RESAMPLES, SEED = 2000, 0
"""Of the rows, in `difference_over_runs`."""


@dataclass(frozen=True)
class RecordedFigure:
    """A figure on all rows and on the usual draws of `difference_over_runs`, of a run that another process made.
    value: of the rows.  figures: (RESAMPLES,) of the draws."""

    value: float
    figures: NDArray[np.float64]

    @classmethod
    def of(cls, rows: int, figure: Weighted) -> RecordedFigure:
        """What `figure` gives on so many rows."""
        drawn = [figure(weights) for _, weights in _draws(rows, RESAMPLES, SEED)]
        return cls(float(figure(np.ones((1, rows)))[0]), np.concatenate(drawn))

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """The value of all rows. Raises ValueError for other weights, which nobody recorded."""
        if len(weights) != 1 or not (weights == 1).all():
            raise ValueError("only the figure of all rows and of the usual draws is known")
        return np.array([self.value])


@dataclass(frozen=True)
class MeanFigure:
    """The mean of several figures."""

    figures: tuple[Weighted, ...]

    def __call__(self, weights: NDArray[np.float64]) -> NDArray[np.float64]:
        """(R, rows) → (R,)."""
        return np.mean([figure(weights) for figure in self.figures], axis=0)


@dataclass(frozen=True)
class DrawnFigures(MeanFigure):
    """The mean of figures of things that were drawn at random from many: which were drawn is a sample too."""

    def resample(self, each: NDArray[np.float64], seed: Sequence[int]) -> NDArray[np.float64]:
        """(R,) means with the draws drawn anew for each of R, by the seed. each: (draws, R) of `figures`."""
        drawn = np.random.default_rng(seed).integers(0, len(each), each.shape)
        return np.take_along_axis(each, drawn, 0).mean(0)


def difference_over_runs(
    rows: int,
    ours: Sequence[Weighted],
    theirs: Sequence[Weighted | DrawnFigures],
    *,
    resamples: int = RESAMPLES,
    seed: int = SEED,
    level: float = 0.95,
) -> Interval:
    """Mean of `ours` minus `theirs`, run by run on the same rows, over other rows, other runs and other draws.

    ours, theirs: one figure a run (a seed), in the same order. The half width is the root of two squares: of the rows
    (and of what was drawn), by the normal distribution, and of the runs, by Student's with one degree of freedom less
    than there are runs (Zou & Donner 2008 combine limits so). Two runs that agree by luck are thus no narrow interval.
    One run says nothing of how runs vary: then the interval is that of the rows alone. Raises ValueError on no rows, no
    runs, runs that are no pairs, or a figure that is undefined on every resample.
    """
    from scipy.special import ndtri, stdtrit

    if not rows or not ours or len(ours) != len(theirs):
        raise ValueError(f"{len(ours)} runs against {len(theirs)} on {rows} rows cannot be paired")
    each = np.array([(a(np.ones((1, rows))) - b(np.ones((1, rows))))[0] for a, b in zip(ours, theirs)])
    value = float(each.mean())
    figures = _resample_runs(rows, ours, theirs, resamples, seed)
    figures = figures[:, ~np.isnan(figures).any(0)]
    if not figures.size:
        raise ValueError("the figure is undefined on every resample of these rows")
    runs, tail = len(each), (1 + level) / 2
    means = figures.mean(0)
    square = float(ndtri(tail)) ** 2 * float(means.var())
    if runs > 1:
        # What a resample does to one run and not to the others is in the spread of the runs already.
        own = float((figures - means).var(1).sum()) / (runs - 1)
        square = float(ndtri(tail)) ** 2 * max(0.0, float(means.var()) - own / runs)
        square += float(stdtrit(runs - 1, tail)) ** 2 * float(each.var(ddof=1)) / runs
    return Interval(value, value - square**0.5, value + square**0.5, rows, len(means), level)


def _resample_runs(
    rows: int, ours: Sequence[Weighted], theirs: Sequence[Weighted | DrawnFigures], resamples: int, seed: int
) -> NDArray[np.float64]:
    """(runs, R) differences of each run on resampled rows."""
    parts = []
    for start, weights in _draws(rows, resamples, seed):
        each = [np.stack([_evaluate(one, weights, start, seed) for one in side]) for side in (ours, theirs)]
        parts.append(each[0] - each[1])
    return np.concatenate(parts, axis=1)


def _draws(rows: int, resamples: int, seed: int) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(place of the first, (n, rows) numbers of draws of each row) of blocks of resamples."""
    rng = np.random.default_rng(seed)
    block = max(1, 2_000_000 // rows)
    for start in range(0, resamples, block):
        size = min(block, resamples - start)
        drawn = rng.integers(0, rows, (size, rows)) + np.arange(size)[:, None] * rows
        yield start, np.bincount(drawn.ravel(), minlength=size * rows).reshape(size, rows).astype(np.float64)


def _evaluate(figure: Weighted, weights: NDArray[np.float64], start: int, seed: int) -> NDArray[np.float64]:
    """(R,) of a block of draws, the first at `start`."""
    if isinstance(figure, RecordedFigure):
        return figure.figures[start : start + len(weights)]
    if isinstance(figure, MeanFigure):
        each = np.stack([_evaluate(one, weights, start, seed) for one in figure.figures])
        return figure.resample(each, (seed, start)) if isinstance(figure, DrawnFigures) else each.mean(0)
    return figure(weights)


def smallest_detectable_gain(gains: ArrayLike, *, level: float = 0.95, power: float = 0.8) -> float:
    """The true mean gain that so many runs, with gains that spread like these, find with probability `power`.

    gains: (n,) of one run each, n ≥ 2. Found: Student's interval of their mean lies above 0, by the noncentral t
    distribution (Cohen 1988). Raises ValueError for fewer than two.
    """
    from scipy.special import nctdtrinc, stdtrit

    x = np.asarray(gains, dtype=np.float64)
    if len(x) < 2:
        raise ValueError(f"a spread needs at least two figures, found {len(x)}")
    critical = stdtrit(len(x) - 1, (1 + level) / 2)
    return float(nctdtrinc(len(x) - 1, 1 - power, critical)) * float(x.std(ddof=1)) / len(x) ** 0.5
