"""Intervals of shares of rows, and of the difference of two models' shares of the same rows.

They hold where a bootstrap has nothing to resample: a model that is right on every row, or two models that are right
on the same rows. `benchmarks/coverage.py` measures how often each holds the truth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from evaluation.quality.intervals import Interval

STEPS = 60
"""Halvings of an interval of width 1 or 2: to the last digit of a float."""


def share_interval(hits: float, rows: float, *, level: float = 0.95) -> Interval:
    """The share of `rows` that were hit, with the interval of Clopper & Pearson (1934) with mid-P (Lancaster 1961).

    Where all rows or none were hit, the far end is that of Clopper & Pearson itself, since mid-P does not cover beside
    it. hits, rows: counts, or of clustered rows the effective ones (Korn & Graubard 1998). Raises ValueError on no
    rows, or hits that are more than the rows or below zero.
    """
    if rows <= 0:
        raise ValueError("no rows to take a share of")
    if not 0 <= hits <= rows * (1 + 1e-12):
        raise ValueError(f"{hits:g} hits among {rows:g} rows")
    missed, tail = max(rows - hits, 0.0), (1 - level) / 2
    found = hits / rows
    if missed < 1e-9:
        low, high = tail ** (1 / rows), 1.0
    elif hits < 1e-9:
        low, high = 0.0, 1 - tail ** (1 / rows)
    else:
        low, high = _mid_p(hits, missed, tail), 1 - _mid_p(missed, hits, tail)
    return Interval(found, min(low, found), max(high, found), round(rows), 0, level)


def _mid_p(hits: float, missed: float, tail: float) -> float:
    """The least share p for which P(X > hits) + P(X = hits) / 2 reaches `tail`."""
    from scipy.special import betainc

    low, high = 0.0, 1.0
    for _ in range(STEPS):
        p = (low + high) / 2
        above = betainc(hits + 1, missed, p)
        from_here = betainc(hits, missed + 1, p)
        low, high = (p, high) if (above + from_here) / 2 < tail else (low, p)
    return (low + high) / 2


def paired_share_interval(only_a: float, only_b: float, rows: int, *, level: float = 0.95) -> Interval:
    """Share of a minus share of b on the same rows, with Tango's score interval (Tango 1998).

    only_a, only_b: rows that only one of the two got right. The interval leaves zero out exactly where McNemar's test
    without correction does, and never has width zero. Raises ValueError on no rows, or more discordant rows than rows.
    """
    from scipy.special import ndtri

    if rows <= 0:
        raise ValueError("no rows to compare on")
    if min(only_a, only_b) < 0 or only_a + only_b > rows * (1 + 1e-12):
        raise ValueError(f"{only_a:g} and {only_b:g} discordant rows among {rows:g}")
    difference = (only_a - only_b) / rows
    z = float(ndtri((1 + level) / 2))
    low = _solve(only_a, only_b, rows, -1.0, difference, z)
    high = _solve(only_a, only_b, rows, difference, 1.0, -z)
    return Interval(difference, min(low, difference), max(high, difference), rows, 0, level)


def _solve(only_a: float, only_b: float, rows: int, low: float, high: float, target: float) -> float:
    """The difference between `low` and `high` at which the score statistic, which falls with it, is `target`."""
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if compute_paired_score(only_a, only_b, rows, middle) > target else (low, middle)
    return (low + high) / 2


def compute_paired_score(only_a: float, only_b: float, rows: int, difference: float) -> float:
    """Distance of what was counted from a true `difference`, in standard errors under it (Tango 1998)."""
    # The share of rows that only b gets right, by maximum likelihood under the difference: a root of a square equation.
    a, b, c = (
        2.0 * rows,
        -only_a - only_b + (2 * rows - only_a + only_b) * difference,
        -only_b * difference * (1 - difference),
    )
    share = (max(b * b - 4 * a * c, 0.0) ** 0.5 - b) / (2 * a)
    variance = rows * (2 * share + difference * (1 - difference))
    apart = only_a - only_b - rows * difference
    if variance <= 0:
        return 0.0 if apart == 0 else float(np.copysign(np.inf, apart))
    return apart / variance**0.5


def count_discordant(right_a: ArrayLike, right_b: ArrayLike) -> tuple[int, int]:
    """(rows that only a got right, rows that only b did) of two (N,) booleans. Raises ValueError when they differ in
    length."""
    a, b = _booleans(right_a), _booleans(right_b)
    if a.shape != b.shape:
        raise ValueError(f"a paired test needs the same rows: {a.shape[0]} against {b.shape[0]}")
    return int((a & ~b).sum()), int((b & ~a).sum())


def _booleans(values: ArrayLike) -> NDArray[np.bool_]:
    return np.asarray(values, dtype=bool)
