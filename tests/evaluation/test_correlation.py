"""Correlations against scipy, with ties, and their bootstrap against plain resampling."""

import numpy as np
import pytest
import scipy.stats
from example_counts import scaled
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from evaluation.quality.correlation import (
    UndefinedCorrelationError,
    bootstrap_correlation,
    pearson,
    pearson_of_draws,
    spearman,
    spearman_of_draws,
)
from evaluation.quality.intervals import bootstrap_rows

CASES = [(pearson, pearson_of_draws, scipy.stats.pearsonr), (spearman, spearman_of_draws, scipy.stats.spearmanr)]


@pytest.mark.parametrize(("ours", "draws", "theirs"), CASES)
@settings(max_examples=scaled(150), deadline=None)
@given(rows=st.lists(st.tuples(st.integers(0, 6), st.integers(-3, 3)), min_size=2, max_size=40))
def test_correlation_equals_scipy_with_ties(ours, draws, theirs, rows):
    x, y = np.array(rows, dtype=float).T
    assume(len(set(x)) > 1)
    assume(len(set(y)) > 1)
    assert ours(x, y) == pytest.approx(theirs(x, y).statistic, abs=1e-9)


@pytest.mark.parametrize(("ours", "draws", "theirs"), CASES)
@pytest.mark.parametrize("scale", [1e-200, 1e-6, 1.0, 1e200])
def test_scale_and_offset_do_not_matter(ours, draws, theirs, scale):
    x = np.random.default_rng(0).normal(size=50)
    y = x + np.random.default_rng(1).normal(size=50)
    assert ours(x * scale, y) == pytest.approx(theirs(x, y).statistic, abs=1e-9)


@pytest.mark.parametrize(("ours", "draws", "theirs"), CASES)
def test_the_bootstrap_equals_resampling_rows(ours, draws, theirs):
    rng = np.random.default_rng(2)
    x = rng.integers(0, 6, 150).astype(float)
    y = x + rng.normal(size=150).round()
    fast = bootstrap_correlation(draws, x, y, resamples=2000)
    picks = [rng.integers(0, 150, 150) for _ in range(1500)]
    slow = np.quantile([theirs(x[i], y[i]).statistic for i in picks], [0.025, 0.975])
    assert fast.value == pytest.approx(theirs(x, y).statistic)
    assert [fast.low, fast.high] == pytest.approx(list(slow), abs=0.012)
    assert (fast.rows, fast.resamples) == (150, 2000)


def test_a_paired_difference_is_tighter_than_two_intervals():
    rng = np.random.default_rng(3)
    gold = rng.normal(size=400)
    a = gold + rng.normal(size=400)
    b = a + 0.3 * rng.normal(size=400)
    of_a, of_b = spearman_of_draws(gold, a), spearman_of_draws(gold, b)
    difference = bootstrap_rows(400, lambda w: of_a(w) - of_b(w))
    alone = bootstrap_correlation(spearman_of_draws, gold, a)
    assert difference.value == pytest.approx(spearman(gold, a) - spearman(gold, b))
    assert difference.high - difference.low < 0.6 * (alone.high - alone.low)


def test_resamples_without_a_correlation_are_left_out_and_not_counted():
    interval = bootstrap_correlation(pearson_of_draws, [0.0, 1.0, 2.0], [0.0, 2.0, 1.0], resamples=400)
    assert 300 < interval.resamples < 400  # one in nine draws the same row three times
    assert np.isfinite([interval.low, interval.value, interval.high]).all()


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([1.0, 2.0], [3.0, 3.0], "the correlation is undefined: all predictions are 3"),
        ([2.5, 2.5], [3.0, 4.0], "the correlation is undefined: all gold scores are 2.5"),
    ],
)
def test_a_constant_side_is_a_named_undefined(gold, predicted, message):
    for call in (pearson, spearman, lambda g, p: bootstrap_correlation(spearman_of_draws, g, p)):
        with pytest.raises(UndefinedCorrelationError, match=message):
            call(gold, predicted)


@pytest.mark.parametrize(
    ("gold", "predicted", "message"),
    [
        ([1.0], [1.0, 2.0], r"gold has shape \(1,\) and predictions \(2,\)"),
        ([1.0], [1.0], "a correlation needs two rows, and there are 1"),
        ([1.0, 2.0], [1.0, float("nan")], "predictions hold values that are not finite"),
    ],
)
def test_bad_input_is_named(gold, predicted, message):
    with pytest.raises(ValueError, match=message):
        spearman(gold, predicted)
