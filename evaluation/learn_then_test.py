"""Learn then test (Angelopoulos et al., arXiv 2110.01052) with a fixed sequence of tests: a choice whose loss is within
a bound with a stated confidence.

Some of the rows with known answers, drawn at random, propose: candidates in an order from the safest to the boldest.
The other rows test them in this order, each by an exact test at the full level, and the first that is not proven ends
it.
The order does not depend on the rows that test. So the first candidate in it whose loss is above the bound is the only
one whose test may go wrong: a wrong one gets through with a chance of at most 1 - confidence, however many are tried,
and what is chosen among those that got through may depend on anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from evaluation.quality.exact_pairs import compute_loss_p_value, count_rows_needed

PROPOSING = 0.3
"""Of the rows with known answers, those that propose: an order needs fewer than a proof."""


class TestedCandidate(Protocol):
    """A candidate on the rows that test."""

    @property
    def p_value(self) -> float:
        """Of a loss beyond the bound."""
        ...


T = TypeVar("T", bound=TestedCandidate)


def draw_proposing(rows: int, seed: int = 0) -> NDArray[np.bool_]:
    """(N,) bool: the rows that propose, at random; the others test."""
    chosen = np.zeros(rows, dtype=np.bool_)
    chosen[np.random.default_rng(seed).permutation(rows)[: round(PROPOSING * rows)]] = True
    return chosen


def count_known_rows_needed(max_loss: float, confidence: float) -> float:
    """Rows with known answers, those that propose among them, without which a loss of `max_loss` points is not refuted
    even if no row is lost; infinity where no number is enough. confidence: 0 to 1."""
    needed = count_rows_needed(max_loss / 100, confidence) / (1 - PROPOSING)
    return needed if math.isinf(needed) else math.ceil(needed)


def measure_loss(lost: int, gained: int, rows: int, max_loss: float) -> tuple[float, float]:
    """(points of accuracy lost, p-value of a true loss of `max_loss` points or more), of rows that only the reference,
    and only the candidate answers right."""
    return 100 * (lost - gained) / rows, compute_loss_p_value(lost, gained, rows, max_loss / 100)


def prove_in_order(candidates: Iterable[T], confidence: float) -> tuple[list[T], list[T]]:
    """(those that are proven, all that were tested, the one that ended it included). candidates: from the safest to the
    boldest, computed one after the other; none after the first that is not proven.  confidence: 0 to 1."""
    tested: list[T] = []
    for candidate in candidates:
        tested.append(candidate)
        if candidate.p_value > 1 - confidence:
            return tested[:-1], tested
    return tested, tested
