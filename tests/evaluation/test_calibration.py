"""Calibration and churn against small tables computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import given, settings
from hypothesis import strategies as st

from evaluation.quality.calibration import (
    COLDEST,
    NoTemperatureError,
    calibration_error,
    fit_temperature,
    fit_validated_temperature,
    is_bounded,
    negative_log_likelihood,
    reliability,
)
from evaluation.quality.churn import QUARTERS, churn, confidence_bands, quarters


def sure(share: float, rows: int) -> np.ndarray:
    """Logits that give the first of two classes this share."""
    return np.tile([np.log(share / (1 - share)), 0.0], (rows, 1))


def whole(rows: int) -> np.ndarray:
    return np.ones((1, rows))


def test_calibration_error_is_the_gap_between_sureness_and_being_right() -> None:
    logits = np.concatenate([sure(0.9, 10), sure(0.6, 10)])
    gold = np.array([0] * 6 + [1] * 4 + [0] * 6 + [1] * 4)  # 60 % right in both
    assert calibration_error(logits, gold)(whole(20))[0] == pytest.approx((0.3 + 0.0) / 2)
    only_first = np.array([[1] * 10 + [0] * 10])
    assert calibration_error(logits, gold)(only_first)[0] == pytest.approx(0.3)
    filled = [b for b in reliability(logits, gold) if b.rows]
    assert [(b.rows, round(b.confidence, 6), b.accuracy) for b in filled] == [(10, 0.6, 0.6), (10, 0.9, 0.6)]
    with pytest.raises(ValueError, match="no rows"):
        calibration_error(np.zeros((0, 2)), np.zeros(0, int))


def test_a_temperature_is_found_again() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(20_000, 3)) * 2
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    gold = np.array([rng.choice(3, p=row) for row in p])
    assert fit_temperature(3 * z, gold) == pytest.approx(3, rel=0.05)
    assert fit_temperature(z / 2, gold) == pytest.approx(0.5, rel=0.05)
    fitted = fit_temperature(3 * z, gold)
    assert calibration_error(3 * z / fitted, gold)(whole(len(z)))[0] < 0.02
    assert calibration_error(3 * z, gold)(whole(len(z)))[0] > 0.1


@settings(max_examples=scaled(30))
@given(st.integers(1, 30), st.integers(2, 5), st.integers(0, 99))
def test_the_fitted_temperature_is_the_best_of_a_grid(rows: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    z, gold = rng.normal(size=(rows, classes)) * 3, rng.integers(0, classes, rows)
    best = negative_log_likelihood(z, gold, fit_temperature(z, gold))
    assert best <= min(negative_log_likelihood(z, gold, t) for t in np.geomspace(0.05, 20, 60)) + 1e-6


def test_a_model_that_is_right_on_every_row_has_no_temperature() -> None:
    """The likelihood rises up to the end of the range: 0.05 was written, and other rows were told with certainty."""
    z = sure(0.9, 40)
    assert not is_bounded(fit_temperature(z, np.zeros(40, int)))
    with pytest.raises(
        NoTemperatureError, match=f"no maximum between {COLDEST:g} and 20 on these 40 rows, of which the"
    ):
        fit_validated_temperature(z, np.zeros(40, int))


def test_a_temperature_must_lower_the_likelihood_of_rows_that_it_was_not_fitted_on() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=(2_000, 3)) * 2
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    gold = np.array([rng.choice(3, p=row) for row in p])
    found = fit_validated_temperature(3 * z, gold)
    assert found.temperature == fit_temperature(3 * z, gold)
    assert found.after < found.before == pytest.approx(negative_log_likelihood(3 * z, gold))
    assert found.after > negative_log_likelihood(3 * z, gold, found.temperature), "the rows it was fitted on flatter it"
    with pytest.raises(NoTemperatureError, match=r"does not lower .*, by 5-fold cross-validation"):
        fit_validated_temperature(3 * z, gold, found.temperature)
    with pytest.raises(ValueError, match="4 rows cannot be split into 5 folds"):
        fit_validated_temperature(z[:4], gold[:4])


def test_churn_counts_by_hand() -> None:
    theirs, ours, gold = [0, 0, 1, 1, 0], [0, 1, 1, 0, 1], [0, 0, 0, 0, 1]
    groups = churn(ours, theirs, gold, {"length": quarters([1, 2, 3, 4, 9]), "label": ["a", "a", "a", "a", "b"]})
    told = {g.name: (g.rows, g.changed, g.broken, g.fixed) for g in groups}
    assert told["all rows"] == (5, 3, 1, 2)
    assert told["a"] == (4, 2, 1, 1)
    assert told["b"] == (1, 1, 0, 1)
    assert sum(told[q][0] for q in QUARTERS) == 5
    assert confidence_bands([0.55, 0.6, 0.8, 0.99]) == ["below 0.60", "0.60 to 0.80", "0.80 to 0.95", "0.95 and above"]
