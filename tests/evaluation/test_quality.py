"""Metrics, intervals and paired tests against scikit-learn, scipy and plain loops."""

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.agreement import agreement
from evaluation.quality.confusion import confusion
from evaluation.quality.draws import of_mean, of_tables
from evaluation.quality.estimates import estimate_metric
from evaluation.quality.intervals import bootstrap_rows
from evaluation.quality.metrics import table_metrics
from evaluation.quality.paired import exact_sign_test, paired_accuracy

REFERENCE = {
    "accuracy": sklearn.metrics.accuracy_score,
    "f1_micro": lambda g, p: sklearn.metrics.f1_score(g, p, average="micro", zero_division=0),
    "f1_macro": lambda g, p: sklearn.metrics.f1_score(g, p, average="macro", zero_division=0),
    "matthews": sklearn.metrics.matthews_corrcoef,
}


def test_every_metric_has_a_reference():
    assert set(table_metrics()) == set(REFERENCE)


@pytest.mark.parametrize("name", sorted(REFERENCE))
@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_metric_equals_scikit_learn(name, rows):
    gold, predicted = np.array(rows).T
    expected = _quiet(REFERENCE[name], gold, predicted)
    assert float(table_metrics()[name](confusion(gold, predicted, 4))) == pytest.approx(expected, abs=1e-12)


def _quiet(metric, gold, predicted):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # scikit-learn warns about single-label input
        return metric(gold, predicted)


@settings(max_examples=scaled(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=60))
def test_binary_f1_equals_scikit_learn(rows):
    gold, predicted = np.array(rows).T
    expected = _quiet(lambda g, p: sklearn.metrics.f1_score(g, p, zero_division=0), gold, predicted)
    assert float(table_metrics(2)["f1_binary"](confusion(gold, predicted, 2))) == pytest.approx(expected, abs=1e-12)


def test_a_metric_of_two_classes_is_offered_for_two():
    assert set(table_metrics(2)) - set(table_metrics(3)) == {"f1_binary"}


def test_the_bootstrap_of_a_table_has_the_spread_of_resampled_rows():
    rng = np.random.default_rng(3)
    gold = rng.integers(0, 5, 300)
    predicted = np.where(rng.random(300) < 0.7, gold, rng.integers(0, 5, 300))
    score = table_metrics()["f1_macro"]
    figure = of_tables(gold, predicted, 5, {"f1_macro": score})["f1_macro"]
    fast = estimate_metric(300, figure, resamples=4000)
    picks = [rng.integers(0, 300, 300) for _ in range(1500)]
    slow = np.quantile([score(confusion(gold[i], predicted[i], 5)) for i in picks], [0.025, 0.975])
    assert fast.high - fast.low == pytest.approx(slow[1] - slow[0], rel=0.1)
    assert [fast.low, fast.high] == pytest.approx(list(slow), abs=0.015)
    assert (fast.rows, fast.resamples) == (300, 4000)


def test_mean_bootstrap_of_many_values():
    x = np.random.default_rng(0).normal(size=2000)
    interval = bootstrap_rows(2000, of_mean(x), resamples=2000)
    assert interval.high - interval.low == pytest.approx(2 * 1.96 / np.sqrt(2000), rel=0.1)
    assert interval.holds(float(x.mean()))


@given(st.integers(0, 400), st.integers(0, 400))
@settings(max_examples=scaled(80), deadline=None)
def test_sign_test_equals_scipy(wins, losses):
    n = wins + losses
    expected = scipy.stats.binomtest(wins, n).pvalue if n else 1.0
    assert exact_sign_test(wins, losses) == pytest.approx(expected, rel=1e-6, abs=1e-12)


def test_paired_difference_is_tighter_than_two_intervals():
    rng = np.random.default_rng(1)
    a = rng.random(800) < 0.9
    b = a.copy()
    b[rng.choice(800, 30, replace=False)] = False
    test = paired_accuracy(a, b)
    assert test.significant
    assert test.only_b == 0
    assert test.difference.high - test.difference.low < 0.03
    assert not paired_accuracy(a, a).significant
    assert paired_accuracy(a, a).p_value == 1.0


def test_agreement_of_a_model_with_itself_and_with_a_shifted_copy():
    logits = np.random.default_rng(0).normal(size=(50, 3))
    same = agreement(logits, logits + 7.0)
    assert same.same.value == 1.0
    assert same.kl == pytest.approx(0.0, abs=1e-12)
    assert agreement(-logits, logits).same.value < 0.5
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    q = np.exp(2 * logits) / np.exp(2 * logits).sum(-1, keepdims=True)
    assert agreement(2 * logits, logits).kl == pytest.approx((p * np.log(p / q)).sum(-1).mean())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: confusion([0, 1], [0], 2), r"gold has shape \(2,\) and predictions \(1,\)"),
        (lambda: confusion([], [], 2), "no rows to score"),
        (lambda: confusion([0, 2], [0, 1], 2), "gold labels run 0..2, but there are 2 classes"),
        (lambda: paired_accuracy([], []), "no rows to compare on"),
        (lambda: paired_accuracy([True], [True, False]), "a paired test needs the same rows: 1 against 2"),
        (lambda: agreement([[0.0, 1.0]], [[0.0, 1.0, 2.0]]), "cannot be compared"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_interval_over_seeds_is_students() -> None:
    from evaluation.quality.intervals import mean_interval

    found = mean_interval([0.90, 0.92, 0.91])
    assert found.value == pytest.approx(0.91)
    assert found.high - found.value == pytest.approx(4.30265 * 0.01 / 3**0.5)
    assert found.value - found.low == pytest.approx(found.high - found.value)
    assert mean_interval(np.zeros(100)).high == 0
    with pytest.raises(ValueError, match="at least two figures, found 1"):
        mean_interval([0.9])
