"""Two models on the same rows: the paired difference and whether it can be told from chance."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evaluation.quality.intervals import Interval
from evaluation.quality.shares import count_discordant, paired_share_interval


@dataclass(frozen=True)
class PairedTest:
    """Accuracy of a minus accuracy of b with Tango's score interval, and McNemar's exact p-value.

    only_a: rows that only a got right; only_b: rows that only b got right.
    """

    difference: Interval
    p_value: float
    only_a: int
    only_b: int

    @property
    def significant(self) -> bool:
        """Whether the interval leaves zero out."""
        return not self.difference.holds(0.0)


def paired_accuracy(correct_a: ArrayLike, correct_b: ArrayLike) -> PairedTest:
    """Compare two models row by row (Tango 1998 for the interval, McNemar 1947 for the exact test).

    correct_a, correct_b: (rows,) booleans, the same rows in order. Raises ValueError when the lengths differ, or on no
    rows.
    """
    only_a, only_b = count_discordant(correct_a, correct_b)
    difference = paired_share_interval(only_a, only_b, len(np.asarray(correct_a)))
    return PairedTest(difference, exact_sign_test(only_a, only_b), only_a, only_b)


def exact_sign_test(wins: int, losses: int) -> float:
    """Two-sided exact binomial p-value of `wins` against `losses` under a fair coin."""
    n, k = wins + losses, min(wins, losses)
    if n == 0:
        return 1.0
    tail = sum(math.exp(_log_choose(n, i) - n * math.log(2)) for i in range(k + 1))
    return min(1.0, 2 * tail)


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
