"""Figures of draws equal the metric on the drawn rows, and their paired differences use the same draws."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.data.task import ScoredAnswers
from evaluation.quality.agreement import bernoulli_divergence, divergence, sigmoid, softmax
from evaluation.quality.confusion import confusion
from evaluation.quality.counts import f1_micro
from evaluation.quality.draws import of_counts, of_mean, of_tables
from evaluation.quality.metrics import table_metrics
from evaluation.quality.multilabel import multilabel_counts


@given(st.integers(0, 2**32 - 1))
def test_a_figure_of_draws_is_the_metric_of_the_drawn_rows(seed):
    rng = np.random.default_rng(seed)
    gold, said = rng.integers(0, 3, (2, 12))
    drawn = rng.integers(0, 12, (4, 12))
    weights = np.stack([np.bincount(row, minlength=12) for row in drawn]).astype(float)
    scores = table_metrics(3)
    for name, figure in of_tables(gold, said, 3, scores).items():
        want = [float(scores[name](confusion(gold[row], said[row], 3))) for row in drawn]
        assert figure(weights).tolist() == pytest.approx(want), name
    assert of_mean(gold)(weights).tolist() == pytest.approx([gold[row].mean() for row in drawn])
    sets, other = rng.random((2, 12, 4)) > 0.5
    want = [float(f1_micro(multilabel_counts(sets[row], other[row]).sum(0))) for row in drawn]
    assert of_counts(multilabel_counts(sets, other), f1_micro)(weights).tolist() == pytest.approx(want)


def test_rows_with_several_labels_are_drawn_whole():
    owner = np.array([0, 0, 1, 2, 2, 2])
    gold, said = np.array([0, 1, 1, 0, 0, 1]), np.array([0, 0, 1, 0, 1, 1])
    score = {"accuracy": table_metrics()["accuracy"]}
    weights = np.array([[1.0, 1, 1], [2, 0, 1]])
    assert of_tables(gold, said, 2, score, owner)["accuracy"](weights).tolist() == pytest.approx([4 / 6, 4 / 7])
    right = np.bincount(owner, gold == said)
    assert of_mean(right, [2, 1, 3])(weights).tolist() == pytest.approx([4 / 6, 4 / 7])
    assert np.isnan(of_mean([1.0], [0])(np.ones((1, 1)))[0])


def test_a_model_against_itself_differs_by_nothing_on_these_rows():
    right = np.arange(50) % 3 == 0
    one = ScoredAnswers(50, {"accuracy": of_mean(right)}, right=right)
    other = ScoredAnswers(50, {"accuracy": of_mean(~right)}, right=~right)
    same = one.difference(one, "accuracy", resamples=200)
    assert (same.value, -same.low) == (0, same.high)
    assert same.high > 0, "nor does that prove that another sample would not"
    apart = one.difference(other, "accuracy", resamples=200)
    assert apart.value == pytest.approx(2 * right.mean() - 1)
    assert apart.low < apart.value < apart.high
    assert np.isnan(one.value("f1"))


def test_divergences_and_probabilities():
    ours, theirs = np.array([[0.0, 1.0]]), np.array([[2.0, -1.0]])
    p, q = softmax(theirs)[0], softmax(ours)[0]
    assert divergence(ours, theirs).tolist() == pytest.approx([float((p * np.log(p / q)).sum())])
    b, c = sigmoid(theirs)[0], sigmoid(ours)[0]
    want = b * np.log(b / c) + (1 - b) * np.log((1 - b) / (1 - c))
    assert bernoulli_divergence(ours, theirs)[0].tolist() == pytest.approx(want.tolist())
    assert sigmoid([-1000.0, 1000.0]).tolist() == [0.0, 1.0]
