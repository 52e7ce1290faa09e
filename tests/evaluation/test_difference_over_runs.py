"""Differences of two ways that were each run several times: rows, runs, and what was drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.runs import DrawnFigures, Weighted, difference_over_runs

ROWS = 300


def answers(rate: float, seed: int) -> Weighted:
    right = (np.random.default_rng(seed).random(ROWS) < rate).astype(float)
    return lambda weights: weights @ right / weights.sum(1)


def test_a_difference_is_that_of_the_means_and_its_interval_holds_it() -> None:
    ours, theirs = [answers(0.8, 1), answers(0.7, 2)], [answers(0.5, 3), answers(0.5, 4)]
    found = difference_over_runs(ROWS, ours, theirs)
    once = np.ones((1, ROWS))
    assert found.value == pytest.approx(float(np.mean([(a(once) - b(once))[0] for a, b in zip(ours, theirs)])))
    assert 0 < found.low < found.value < found.high
    assert difference_over_runs(ROWS, ours, ours).value == 0
    with pytest.raises(ValueError, match="1 runs against 2 on 300 rows cannot be paired"):
        difference_over_runs(ROWS, ours[:1], theirs)


def test_draws_that_differ_widen_the_interval_and_do_not_move_the_value() -> None:
    ours = [answers(0.9, 1)]
    draws = tuple(answers(rate, i) for i, rate in enumerate((0.1, 0.4, 0.6, 0.9)))
    known = difference_over_runs(ROWS, ours, [lambda w: np.mean([d(w) for d in draws], axis=0)])
    drawn = difference_over_runs(ROWS, ours, [DrawnFigures(draws)])
    assert drawn.value == pytest.approx(known.value)
    assert drawn.high - drawn.low > 3 * (known.high - known.low)
    alike = difference_over_runs(ROWS, ours, [DrawnFigures((draws[1],) * 4)])
    assert alike == difference_over_runs(ROWS, ours, [draws[1]])
