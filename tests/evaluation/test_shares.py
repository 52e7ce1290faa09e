"""Intervals of shares and of their paired differences, against scipy and against definitions, and how often they hold
the truth."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.paired import paired_accuracy
from evaluation.quality.shares import paired_share_interval, share_interval

Z = float(scipy.stats.norm.ppf(0.975))


@pytest.mark.parametrize("rows", [1, 20, 200, 3000])
def test_right_on_every_row_is_no_certainty(rows: int) -> None:
    """The interval of Clopper and Pearson: as many rows without a miss would be seen in 1 of 40 samples."""
    every = share_interval(rows, rows)
    assert (every.value, every.high) == (1.0, 1.0)
    assert every.low == pytest.approx(scipy.stats.binomtest(rows, rows).proportion_ci(method="exact").low, rel=1e-9)
    none = share_interval(0, rows)
    assert (none.value, none.low, none.high) == (0.0, 0.0, pytest.approx(1 - every.low))


@settings(max_examples=scaled(60), deadline=None)
@given(st.integers(1, 500), st.integers(2, 500))
def test_ends_are_where_half_of_what_was_seen_is_as_far_out_as_the_tail(hits: int, rows: int) -> None:
    hits, rows = min(hits, rows - 1), max(rows, 2)
    hits = max(hits, 1)
    found = share_interval(hits, rows)
    for p, above in ((found.low, True), (found.high, False)):
        b = scipy.stats.binom(rows, p)
        tail = (b.sf(hits) if above else b.cdf(hits - 1)) + b.pmf(hits) / 2
        assert tail == pytest.approx(0.025, rel=1e-6)


def coverage(rows: int, p: float) -> float:
    """Exact: the probability of the counts whose interval holds `p`."""
    chances = scipy.stats.binom.pmf(np.arange(rows + 1), rows, p)
    seen = np.flatnonzero(chances > 1e-7)
    return float(sum(chances[k] for k in seen if share_interval(int(k), rows).holds(p)))


@pytest.mark.parametrize(("rows", "p"), [(50, 0.99), (100, 0.99), (200, 0.99), (20, 0.5), (180, 0.999), (1000, 0.999)])
def test_the_interval_of_a_share_covers(rows: int, p: float) -> None:
    """With resampled rows the first three were 42, 65 and 87 %. More than 98 % where one count alone is as probable."""
    most = max(0.98, float(scipy.stats.binom.pmf(rows, rows, p)) + 0.02)
    assert 0.93 <= coverage(rows, p) <= max(most, 0.99)


@pytest.mark.parametrize(("only_a", "only_b", "rows"), [(0, 0, 20), (3, 0, 20), (0, 7, 50), (17, 4, 100), (1, 1, 300)])
def test_the_paired_interval_is_tangos(only_a: int, only_b: int, rows: int) -> None:
    """At its ends the score statistic is the normal quantile, with the likelihood maximized by hand."""
    found = paired_share_interval(only_a, only_b, rows)

    def statistic(apart: float) -> float:
        def cost(q: float) -> float:  # of q, the share that only b gets right
            shares = np.array([q + apart, q, 1 - 2 * q - apart])
            counts = np.array([only_a, only_b, rows - only_a - only_b])
            return -float((counts * np.log(np.maximum(shares, 1e-300))).sum())

        least, most = max(0.0, -apart), (1 - apart) / 2
        q = scipy.optimize.minimize_scalar(cost, bounds=(least, most), method="bounded", options={"xatol": 1e-12}).x
        return (only_a - only_b - rows * apart) / (rows * (2 * q + apart * (1 - apart))) ** 0.5

    assert statistic(found.low) == pytest.approx(Z, abs=1e-3)
    assert statistic(found.high) == pytest.approx(-Z, abs=1e-3)
    other = paired_share_interval(only_b, only_a, rows)
    assert (other.low, other.high) == pytest.approx((-found.high, -found.low), abs=1e-9)


@settings(max_examples=scaled(80), deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(120, 400))
def test_zero_lies_outside_exactly_where_mcnemar_says_so(only_a: int, only_b: int, rows: int) -> None:
    found = paired_share_interval(only_a, only_b, rows)
    beyond = abs(only_a - only_b) > Z * (only_a + only_b) ** 0.5
    assert found.holds(0.0) != beyond
    assert found.low < found.value < found.high


def test_models_that_are_right_on_the_same_rows_may_differ_on_others() -> None:
    right = np.arange(20) % 4 > 0
    found = paired_accuracy(right, right).difference
    assert (found.value, found.low, found.high) == (
        0.0,
        pytest.approx(-0.1611, abs=1e-4),
        pytest.approx(0.1611, abs=1e-4),
    )


@pytest.mark.parametrize(("rows", "discordant", "ahead"), [(50, 0.05, 0.5), (200, 0.02, 1.0), (1000, 0.2, 0.6)])
def test_the_paired_interval_covers(rows: int, discordant: float, ahead: float) -> None:
    a = discordant * ahead
    drawn = np.random.default_rng(0).multinomial(rows, [a, discordant - a, 1 - discordant], size=4000)
    pairs, counts = np.unique(drawn[:, :2], axis=0, return_counts=True)
    truth = 2 * a - discordant
    held = [paired_share_interval(int(x), int(y), rows).holds(truth) for x, y in pairs]
    assert 0.925 <= float(np.average(held, weights=counts)) <= 0.98


def test_bad_counts_are_named() -> None:
    for call, message in (
        (lambda: share_interval(0, 0), "no rows"),
        (lambda: share_interval(3, 2), "3 hits among 2 rows"),
        (lambda: paired_share_interval(0, 0, 0), "no rows"),
        (lambda: paired_share_interval(2, 2, 3), "2 and 2 discordant rows among 3"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
