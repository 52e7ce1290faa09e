"""The exact test of a loss on paired rows: it is wrong as seldom as it says, whatever the rows."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evaluation.quality.exact_pairs import MISSED, MOST_CONFIDENCE, compute_loss_p_value, count_rows_needed


@pytest.mark.parametrize("most", [0.05, 0.2])
@pytest.mark.parametrize("gains", [0.0, 0.02, 0.1, 0.3])
def test_a_loss_at_the_bound_is_called_smaller_as_seldom_as_stated(most: float, gains: float) -> None:
    rows = 24
    pairs = [(lost, gained) for lost in range(rows + 1) for gained in range(rows + 1 - lost)]
    lost, gained = np.array(pairs).T
    ways = [math.lgamma(rows + 1) - sum(math.lgamma(n + 1) for n in (a, b, rows - a - b)) for a, b in pairs]
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.where(n == 0, 0, n * np.log(s)) for n, s in ((lost, most + gains), (gained, gains))]
    chances = np.exp(np.array(ways) + logs[0] + logs[1] + (rows - lost - gained) * np.log(1 - most - 2 * gains))
    assert chances.sum() == pytest.approx(1)
    p_values = np.array([compute_loss_p_value(a, b, rows, most) for a, b in pairs])
    for level in (0.02, 0.05, 0.1, 0.3):
        assert chances[p_values <= level].sum() <= level
    assert chances[p_values <= 0.3].sum() > 0.05, "a test that never proves anything would be of no use"


def test_more_lost_is_less_sure_and_more_gained_is_surer() -> None:
    p = [compute_loss_p_value(lost, 2, 400, 0.02) for lost in range(12)]
    assert p == sorted(p)
    assert p[0] < 0.01
    assert p[-1] == 1, "a loss at the bound proves nothing"
    assert compute_loss_p_value(4, 3, 400, 0.02) < compute_loss_p_value(4, 2, 400, 0.02)
    assert compute_loss_p_value(0, 0, 50, 0.0) == 1, "that nothing is lost is not proven by equal answers"


def test_few_rows_cannot_prove_a_small_bound() -> None:
    needed = count_rows_needed(0.01, 0.9)
    assert needed == 231
    assert compute_loss_p_value(0, 0, int(needed) - 5, 0.01) > 0.1
    assert compute_loss_p_value(0, 0, int(needed) + 5, 0.01) < 0.1
    assert count_rows_needed(0.0, 0.9) == math.inf
    assert count_rows_needed(1.0, 0.9) == 1


def test_no_row_count_proves_more_than_the_largest_confidence() -> None:
    for confidence in (0.5, 0.95, 0.99, MOST_CONFIDENCE):
        needed = int(count_rows_needed(0.01, confidence))
        assert compute_loss_p_value(0, 0, needed, 0.01) <= 1 - confidence < compute_loss_p_value(0, 0, needed - 1, 0.01)
    assert compute_loss_p_value(0, 0, 5000, 0.01) >= MISSED
    for confidence in (1 - MISSED, 0.9995, 1.0):
        assert count_rows_needed(0.01, confidence) == math.inf
    assert count_rows_needed(1e-30, 0.9) > 1e30, "nor does a tiny bound take long, or fail"
