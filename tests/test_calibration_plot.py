"""The reliability plot: what it shows is what the bins say, before and after a temperature."""

from __future__ import annotations

import numpy as np
import pytest

from compress.measure.calibration import calibration, chart
from evaluation.quality.calibration import calibration_error


def told(rows: int, factor: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """(N, 3) logits `factor` times as large as they should be, and labels drawn from what they should be."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(rows, 3)) * 1.5
    p = np.exp(z) / np.exp(z).sum(1, keepdims=True)
    return factor * z, np.array([rng.choice(3, p=row) for row in p])


def test_before_and_after_a_temperature() -> None:
    logits, gold = told(4000, 3.0)
    found = calibration(logits, gold, 1.0, told(2000, 3.0, seed=1), bootstrap=100)
    assert found.temperature == pytest.approx(3.0, rel=0.1)
    assert found.values is not None
    before = float(calibration_error(logits, gold)(np.ones((1, len(gold))))[0])
    assert found.values["quality/calibration_error_scaled"] < 0.03 < 0.15 < before
    assert sum(b.rows for b in found.before) == sum(b.rows for b in found.after) == 4000

    svg = chart("模型", {"student": found}, scaled="student")
    assert svg.count("<polyline") == 3
    for name in ("perfect calibration", "student", f"student, temperature {found.temperature:.2f}", "模型"):
        assert name in svg


def test_without_other_rows_only_what_is() -> None:
    logits, gold = told(100, 1.0)
    for held in (None, (logits[:3], gold[:3])):
        found = calibration(logits, gold, 1.0, held, bootstrap=100)
        assert (found.temperature, found.after, found.values) == (None, (), None)
        assert chart("t", {"a": found}, scaled="a").count("<polyline") == 2


def test_its_own_temperature_counts() -> None:
    logits, gold = told(500, 3.0)
    mended, plain = (calibration(x, gold, t, None, bootstrap=100) for x, t in ((logits, 3.0), (logits / 3, 1.0)))
    assert [b.rows for b in mended.before] == [b.rows for b in plain.before]
