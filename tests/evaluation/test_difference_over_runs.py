"""Differences of two ways that were each run several times: rows, runs, and what was drawn at random."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.runs import DrawnFigures, Weighted, difference_over_runs, smallest_detectable_gain

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


@pytest.mark.parametrize(("runs", "between"), [(2, 0.2), (3, 0.0), (3, 0.2), (3, 0.6), (5, 0.2)])
def test_the_interval_over_runs_covers(runs: int, between: float) -> None:
    """Rows differ in how hard they are, runs in how good they are; resampling both covered 84 % with three runs."""
    random, rows, gain = np.random.default_rng(7), 200, 0.2

    def right(shift: float, base: np.ndarray) -> np.ndarray:
        logits = base + shift + random.normal(0, between, (runs, 1)) + random.normal(0, 0.5, (runs, rows))
        return (random.random((runs, rows)) < 1 / (1 + np.exp(-logits))).astype(float)

    hard = random.normal(1.3, 1.2, 200_000)
    spread = random.normal(0, (0.25 + between**2) ** 0.5, 200_000)
    truth = float(np.mean(1 / (1 + np.exp(-hard - gain - spread))) - np.mean(1 / (1 + np.exp(-hard - spread))))
    held, times = 0, 200
    for _ in range(times):
        base = random.normal(1.3, 1.2, rows)
        ours, theirs = right(gain, base), right(0.0, base)
        found = difference_over_runs(
            rows, *([lambda w, x=x: w @ x / rows for x in s] for s in (ours, theirs)), resamples=100
        )
        held += found.holds(truth)
    assert 0.91 <= held / times <= 1


def test_the_smallest_gain_that_so_many_runs_find() -> None:
    """With a spread of 1.1: 3.6 with three runs, 1.1 with ten; four of five samples then exclude 0."""
    random = np.random.default_rng(0)
    for runs, expected in ((3, 3.59), (10, 1.096)):
        gains = random.normal(size=runs)
        gains = 1.1 * (gains - gains.mean()) / gains.std(ddof=1)
        least = smallest_detectable_gain(gains)
        assert least == pytest.approx(expected, abs=0.01)
        samples = random.normal(least, 1.1, (20_000, runs))
        t = samples.mean(1) / samples.std(1, ddof=1) * runs**0.5
        assert np.mean(t > {3: 4.303, 10: 2.262}[runs]) == pytest.approx(0.8, abs=0.02)
    with pytest.raises(ValueError, match="at least two figures, found 1"):
        smallest_detectable_gain([0.1])
