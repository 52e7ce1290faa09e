"""The best constant answer, against all constant answers tried one by one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evaluation.quality.chance import find_unbeaten, score_constant_label, score_constant_labels
from evaluation.quality.confusion import confusion
from evaluation.quality.counts import f1_macro, f1_micro
from evaluation.quality.metrics import table_metrics
from evaluation.quality.multilabel import exact_rows, multilabel_counts


@pytest.mark.parametrize("classes", [2, 4])
def test_no_constant_label_scores_more(classes: int) -> None:
    gold = np.random.default_rng(classes).choice(classes, 200, p=np.arange(1, classes + 1) / sum(range(classes + 1)))
    found = score_constant_label(gold, classes)
    tried = {
        name: [float(score(confusion(gold, np.full(200, c), classes))) for c in range(classes)]
        for name, score in table_metrics(classes).items()
        if name in found
    }
    assert found == pytest.approx({name: max(scores) for name, scores in tried.items()})
    assert ("f1_binary" in found) == (classes == 2)


def test_no_constant_set_of_labels_scores_more() -> None:
    truth = np.random.default_rng(0).random((60, 4)) < [0.7, 0.4, 0.2, 0.05]
    best = dict.fromkeys(("f1_micro", "f1_macro", "accuracy"), 0.0)
    for chosen in itertools.product((False, True), repeat=4):
        said = np.tile(chosen, (60, 1))
        counts = multilabel_counts(truth, said).sum(0)
        scores = {
            "f1_micro": f1_micro(counts),
            "f1_macro": f1_macro(counts),
            "accuracy": exact_rows(truth, said).mean(),
        }
        best = {name: max(best[name], float(scores[name])) for name in best}
    assert score_constant_labels(truth) == pytest.approx(best)


def test_no_rows_are_named() -> None:
    for call in (lambda: score_constant_label(np.zeros(0, int), 2), lambda: score_constant_labels(np.zeros((0, 2)))):
        with pytest.raises(ValueError, match="no rows to score"):
            call()


@pytest.mark.parametrize(
    ("value", "levels", "found"),
    [
        (0.5, {"chance": 0.5, "words": 0.4}, "chance"),
        (0.5 + 1e-10, {"chance": 0.5}, "chance"),
        (0.51, {"chance": 0.5}, None),
        (0.3, {"chance": 0.5, "words": 0.6}, "words"),
        (1.0, {"words": 1.0}, None),
        (float("nan"), {"chance": 0.5}, None),
        (0.3, {}, None),
    ],
)
def test_the_highest_level_that_is_not_beaten_is_named(value: float, levels: dict[str, float], found: str) -> None:
    assert find_unbeaten(value, levels) == found
