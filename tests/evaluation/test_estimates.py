"""Which interval a metric has, and that none is certain of what few rows show."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.calibration import calibration_error
from evaluation.quality.correlation import spearman_of_draws
from evaluation.quality.counts import f1_micro
from evaluation.quality.draws import of_counts, of_mean, of_tables
from evaluation.quality.estimates import estimate_difference, estimate_metric
from evaluation.quality.intervals import bootstrap_rows
from evaluation.quality.metrics import table_metrics
from evaluation.quality.shares import paired_share_interval, share_interval


def macro(gold: np.ndarray, predicted: np.ndarray, classes: int):
    return of_tables(gold, predicted, classes, {"f1_macro": table_metrics()["f1_macro"]})["f1_macro"]


def test_a_share_of_rows_has_the_interval_of_a_share() -> None:
    right, other = np.arange(100) % 10 > 0, np.arange(100) % 5 > 0
    assert estimate_metric(100, of_mean(right)) == share_interval(90, 100)
    assert estimate_difference(100, of_mean(right), of_mean(other)) == paired_share_interval(10, 0, 100)


@pytest.mark.parametrize("kind", ["f1_macro", "entities", "words", "scores"])
def test_a_perfect_figure_and_equal_figures_are_no_certainty(kind: str) -> None:
    """A bootstrap of rows without an error resamples none."""
    rows = 60
    gold = np.arange(rows) % 3
    counts = np.tile([[2, 2, 2]], (rows, 1))[:, None, :]
    figure = {
        "f1_macro": macro(gold, gold, 3),
        "entities": of_counts(counts, f1_micro),
        "words": of_mean(np.full(rows, 7.0), np.full(rows, 7.0)),
        "scores": of_mean(np.where(np.arange(rows) < 50, 1.0, 0.5)),
    }[kind]
    found = estimate_metric(rows, figure, resamples=200)
    if kind != "scores":
        assert (found.value, found.high, found.low) == (1.0, 1.0, pytest.approx(share_interval(rows, rows).low))
    apart = estimate_difference(rows, figure, figure, resamples=200)
    assert (apart.value, apart.low) == (0.0, pytest.approx(paired_share_interval(0, 0, rows).low))


def test_few_errors_widen_a_bootstrap_to_the_interval_of_as_many_effective_rows() -> None:
    """One wrong row of 50: a third of all resamples hold none."""
    gold = np.arange(50) % 2
    predicted = gold.copy()
    predicted[0] = 1
    plain, found = (f(50, macro(gold, predicted, 2)) for f in (bootstrap_rows, estimate_metric))
    assert found.low < plain.low
    exact = share_interval(49, 50)
    assert (found.low, found.high) == pytest.approx((exact.low, exact.high), abs=0.02)


def test_few_rows_that_differ_widen_the_difference_of_scores() -> None:
    ours = np.ones(80)
    theirs = ours.copy()
    theirs[3] = 0.25
    found = estimate_difference(80, of_mean(ours), of_mean(theirs))
    assert found.low < 0 < found.value < found.high, "one row is no proof"


def test_macro_f1_with_a_small_class_covers() -> None:
    """BCa: 93.8 % in a long simulation of this case, where percentiles of resamples held the truth in 90.8 %."""
    random, shares, recall = np.random.default_rng(0), np.array([0.95, 0.05]), np.array([0.98, 0.8])
    cells = np.array([[shares[0] * recall[0], shares[0] * (1 - recall[0])], [0.01, 0.04]])
    truth = float(table_metrics()["f1_macro"](cells))
    held = 0
    for _ in range(200):
        table = random.multinomial(100, cells.ravel())
        gold, predicted = np.repeat([0, 0, 1, 1], table), np.repeat([0, 1, 0, 1], table)
        held += estimate_metric(100, macro(gold, predicted, 2), resamples=300).holds(truth)
    assert 0.9 <= held / 200 <= 1


def test_the_calibration_error_of_a_calibrated_model_may_be_zero() -> None:
    """And an overconfident model's is not: its interval holds the true error."""
    held, zero = 0, 0
    for seed in range(60):
        random = np.random.default_rng(seed)
        share = 0.5 + 0.5 * random.beta(5, 1, 400)
        share = np.clip(share, 0.5, 0.999)
        logits = np.stack([np.log(share), np.log1p(-share)], axis=1)
        calibrated = np.where(random.random(400) < share, 0, 1)
        overconfident = np.where(random.random(400) < np.maximum(share - 0.1, 0.4), 0, 1)
        found = calibration_error(logits, calibrated).interval(resamples=200)
        assert found.value == pytest.approx(float(calibration_error(logits, calibrated)(np.ones((1, 400)))[0]))
        zero += found.low == 0.0
        held += calibration_error(logits, overconfident).interval(resamples=200).holds(0.1)
    assert zero >= 55
    assert held >= 54


def test_a_correlation_near_0_is_at_no_end_of_its_range() -> None:
    random = np.random.default_rng(4)
    figure = spearman_of_draws(random.random(60), random.random(60))
    assert estimate_metric(60, figure) == bootstrap_rows(60, figure)
