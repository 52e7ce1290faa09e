"""Whether a model loses less than a bound against another one, proven on paired rows: an exact test for any number of
rows, where intervals by a normal approximation promise more than they hold.

Of each row it is counted whether it was lost (only the reference is right) or gained (only the other model is). The
hypothesis is that the share lost minus the share gained is at least the bound. Its p-value is the largest chance, over
all shares of gained rows, of Tango's score (1998) being as low as it is: the unconditional test of Sidik (2003, Stat.
Med. 22:265). The shares are those of an interval that misses the true one with a chance of MISSED, which is added to
the p-value (Berger & Boos 1994).
"""

from __future__ import annotations

import functools
import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.shares import compute_paired_score

MISSED = 0.001
MOST_CONFIDENCE = 1 - 2 * MISSED
"""Largest confidence to ask for: no p-value is below MISSED, so that as much is left for the test itself."""
MANY = 10**7
"""Rows beyond which only a lower bound of how many are needed is computed."""
SHARES = 100
"""Shares of gained rows that are looked at; the chance changes little between two of them."""


@functools.lru_cache(maxsize=4096)
def compute_loss_p_value(lost: int, gained: int, rows: int, most: float) -> float:
    """P-value of the hypothesis that the true loss is `most` or more: it is at most p with a chance of at most p.

    lost, gained: rows that only the reference, and only the other model answers right.  most: a share, 0 to 1.
    Raises ValueError on no rows, and more discordant rows than rows.
    """
    from scipy.special import betaincinv

    score = compute_paired_score(lost, gained, rows, most)
    if lost - gained >= rows * most:
        return 1.0
    end, largest = MISSED / 2, (1 - most) / 2
    low = betaincinv(gained, rows - gained + 1, end) if gained else 0.0
    high = betaincinv(gained + 1, rows - gained, 1 - end) if gained < rows else 1.0
    shares = np.linspace(min(low, largest), min(high, largest), SHARES)
    return min(1.0, float(_compute_chances(score, rows, most, shares).max()) + MISSED)


def count_rows_needed(most: float, confidence: float) -> float:
    """Rows of which, if none differs, a loss below `most` is proven: fewer can only prove it by gains. Infinity where
    no number is enough, as with a confidence that leaves no more than MISSED."""
    if most <= 0 or confidence >= 1 - MISSED:
        return math.inf
    if most >= 1:
        return 1
    least = math.ceil(math.log(1 - confidence - MISSED) / math.log1p(-most))  # if nothing could be gained either
    if least > MANY:
        return least
    enough = range(least, 2 * least + 20)
    return enough[0] + bisect_left(enough, True, key=lambda n: compute_loss_p_value(0, 0, n, most) <= 1 - confidence)


def _compute_chances(score: float, rows: int, most: float, shares: NDArray[np.float64]) -> NDArray[np.float64]:
    """(S,) chance of a score of at most `score`, where the loss is `most` and the share gained is one of (S,)."""
    from scipy.special import bdtr, gammaln, xlog1py, xlogy

    widest = rows * float(shares[-1])
    gained = np.arange(min(rows, math.ceil(widest + 9 * math.sqrt(widest) + 20)) + 1)
    lost = np.array(_list_most_lost(score, rows, most, len(gained)))
    share = shares[:, None]
    ways = gammaln(rows + 1) - gammaln(gained + 1) - gammaln(rows - gained + 1)
    chance = np.exp(ways + xlogy(gained, share) + xlog1py(rows - gained, -share))
    below = bdtr(np.maximum(lost, 0), rows - gained, np.minimum(1, (share + most) / (1 - share)))
    counted = (chance * np.where(lost < 0, 0, below)).sum(1)
    return counted + np.maximum(0, 1 - chance.sum(1))  # what was left out counts as if it were as low


def _list_most_lost(score: float, rows: int, most: float, count: int) -> list[int]:
    """For 0, 1 .. gained rows: the most rows that may be lost for a score of at most `score`; -1 for none. It never
    falls: who gains more may lose more."""
    found, lost = [], -1
    for gained in range(count):
        while lost < rows - gained and compute_paired_score(lost + 1, gained, rows, most) <= score:
            lost += 1
        found.append(min(lost, rows - gained))
    return found
