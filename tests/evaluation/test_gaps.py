"""Gaps between groups of rows: which groups, the interval of a difference, and how often it holds."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest

from evaluation.quality.gaps import find_largest_gap, measure_gaps
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice


def group(name: str, value: float, half: float = 0.1, rows: int = 100) -> Slice:
    return Slice("by", name, rows, Interval(value, value - half, value + half, rows, 1000))


SMALL = Slice("by", "small", 3, why="fewer than 30 rows")


def test_two_groups_have_the_interval_of_a_difference() -> None:
    """Equal half-widths h: the difference's is sqrt(2) h, and one pair needs no correction."""
    found = find_largest_gap([group("a", 0.9), group("b", 0.6)])
    assert found is not None
    assert (found.best, found.worst, found.groups, found.small) == ("a", "b", 2, 0)
    half = 0.1 * 2**0.5
    assert (found.value.value, found.value.low, found.value.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))
    assert found.value.rows == 200
    assert found.is_measurable


def test_uneven_intervals_count_on_their_own_side() -> None:
    a = Slice("by", "a", 50, Interval(0.9, 0.8, 0.94, 50, 1000))
    b = Slice("by", "b", 50, Interval(0.6, 0.57, 0.72, 50, 1000))
    found = find_largest_gap([b, a])
    assert found is not None
    assert found.value.low == pytest.approx(0.3 - np.hypot(0.1, 0.12))
    assert found.value.high == pytest.approx(0.3 + np.hypot(0.04, 0.03))


def test_more_groups_widen_the_interval_for_all_pairs() -> None:
    found = find_largest_gap([group("a", 0.9), group("b", 0.6), group("c", 0.7)])
    assert found is not None
    wider = NormalDist().inv_cdf(1 - 0.025 / 3) / NormalDist().inv_cdf(0.975)
    assert found.value.value - found.value.low == pytest.approx(wider * 0.1 * 2**0.5)


def test_small_groups_are_counted_and_not_compared() -> None:
    groups = [group("a", 0.9), SMALL, group("b", 0.6), SMALL]
    found = find_largest_gap(groups)
    assert found is not None
    assert (found.groups, found.small) == (2, 2)
    behind = measure_gaps(groups)
    assert [b is None for b in behind] == [True, True, False, True]
    assert behind[2] == found.value


@pytest.mark.parametrize("groups", [[], [SMALL], [group("a", 0.5)], [group("a", 0.5), SMALL]])
def test_one_group_has_no_gap(groups: list[Slice]) -> None:
    assert find_largest_gap(groups) is None
    assert measure_gaps(groups) == [None] * len(groups)


def test_equal_groups_have_a_gap_of_zero_that_is_not_measurable() -> None:
    found = find_largest_gap([group("a", 0.5), group("b", 0.5)])
    assert found is not None
    assert found.best != found.worst
    assert (found.value.value, found.is_measurable) == (0.0, False)


def test_gaps_between_alike_groups_are_rarely_measurable() -> None:
    """Five groups of one accuracy, 1,000 times: with intervals that are right a twentieth at most, with chance."""
    random = np.random.default_rng(0)
    half = NormalDist().inv_cdf(0.975) * (0.8 * 0.2 / 400) ** 0.5
    wrong = 0
    for _ in range(1000):
        groups = [group(str(n), value, half, 400) for n, value in enumerate(random.normal(0.8, 0.02, 5))]
        found = find_largest_gap(groups)
        assert found is not None
        wrong += found.is_measurable
    assert 10 <= wrong <= 65
