"""Metrics of many classes: the same figures as from confusion tables, without the tables."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from compress.data.text import baselines
from evaluation.quality import draws
from evaluation.quality.draws import of_tables
from evaluation.quality.metrics import table_metrics
from evaluation.quality.slices import by_value


@pytest.mark.parametrize("classes", [2, 5, 40])
def test_metrics_of_margins_are_those_of_tables(classes: int) -> None:
    random = np.random.default_rng(classes)
    gold, predicted = random.integers(0, classes, (2, 60))
    weights = random.multinomial(60, np.full(60, 1 / 60), size=7).astype(float)
    scores = table_metrics(classes)
    own = {name: (lambda tables, score=score: score(tables)) for name, score in scores.items()}  # sees tables
    found, wanted = of_tables(gold, predicted, classes, scores), of_tables(gold, predicted, classes, own)
    for name in scores:
        np.testing.assert_array_equal(found[name](weights), wanted[name](weights), err_msg=name)


def test_ten_thousand_classes_need_no_table_of_them() -> None:
    random = np.random.default_rng(0)
    gold, predicted = random.integers(0, 10_000, (2, 500))
    tracemalloc.start()
    try:
        figures = of_tables(gold, predicted, 10_000, table_metrics(10_000))
        values = {name: figure(np.ones((20, 500))) for name, figure in figures.items()}
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 16 * draws.CELLS, "a table has 800 MB"
    assert values["accuracy"][0] == (gold == predicted).mean()


def test_naive_bayes_of_many_classes_gives_the_same_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["a good film", "a bad film", "", "good good plot", "a bad bad plot i think"]
    labels, asked = np.array([0, 1, 2, 0, 3]), ["good plot", "unknown words", "a a bad film", ""]
    dense = baselines.naive_bayes(texts, labels, asked, 6)
    monkeypatch.setattr(baselines, "MOST_WEIGHTS", 10)
    sparse = baselines.naive_bayes(texts, labels, asked, 6)
    assert sparse.dtype == np.float32
    np.testing.assert_allclose(sparse, dense, atol=1e-5)
    assert baselines.classify(texts, labels, asked, 6)[0] == baselines.BAYES


def test_groups_by_value_are_those_of_a_comparison() -> None:
    values = np.random.default_rng(0).integers(0, 9, 200)
    for group in by_value("label", values):
        np.testing.assert_array_equal(group.inside, values == int(group.name))
