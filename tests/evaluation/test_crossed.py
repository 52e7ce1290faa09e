"""Labels in another order: found when they are, never when a model is merely bad."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.crossed import find_crossed_labels


def answers(classes: int, rows: int, right: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Gold labels, and answers of which a share is right."""
    rng = np.random.default_rng(seed)
    gold = rng.integers(0, classes, rows)
    return gold, np.where(rng.random(rows) < right, gold, rng.integers(0, classes, rows))


@pytest.mark.parametrize(("classes", "right"), [(2, 0.9), (2, 0.8), (3, 0.7), (7, 0.9), (77, 0.95)])
def test_a_permuted_model_is_found_with_its_order(classes: int, right: float) -> None:
    gold, said = answers(classes, 256, right)
    order = np.roll(np.arange(classes), 1)
    found = find_crossed_labels(gold, order[said], classes)
    assert found is not None
    assert found.plain < 0.3
    assert found.ordered > right - 0.1
    seen = np.bincount(gold, minlength=classes) > 3  # a class without rows says nothing of its place
    assert np.array_equal(found.order[seen], order[seen])


def test_two_of_three_classes_swapped() -> None:
    """Entailment and contradiction, the classic: neutral is right all along."""
    gold, said = answers(3, 256, 0.85)
    found = find_crossed_labels(gold, np.array([2, 1, 0])[said], 3)
    assert found is not None
    assert found.order.tolist() == [2, 1, 0]


@settings(max_examples=scaled(150), deadline=None)
@given(st.integers(2, 20), st.integers(1, 300), st.floats(0, 1), st.integers(0, 10_000))
def test_a_model_that_is_as_good_as_it_is_has_its_order(classes: int, rows: int, right: float, seed: int) -> None:
    assert find_crossed_labels(*answers(classes, rows, right, seed), classes) is None


@pytest.mark.parametrize("share", [0.5, 0.95])
def test_one_answer_for_all_is_no_order(share: float) -> None:
    """On uneven data the other name would make it right more often, and still it would know nothing."""
    gold = (np.random.default_rng(1).random(256) < share).astype(int)
    assert find_crossed_labels(gold, np.zeros(256, dtype=int), 2) is None
    assert find_crossed_labels(gold, np.ones(256, dtype=int), 2) is None


def test_a_few_rows_prove_nothing() -> None:
    gold = np.array([0, 1, 0, 1, 0, 1])
    assert find_crossed_labels(gold, 1 - gold, 2) is None
    assert find_crossed_labels(gold[:2], 1 - gold[:2], 2) is None
