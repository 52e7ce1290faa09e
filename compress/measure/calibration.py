"""Whether probabilities mean what they say, before and after temperature scaling: figures, and a reliability plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from compress.data.tables.table import Rows
from compress.report.plots import Curve, line_chart
from evaluation.quality.calibration import Bin, calibration_error, fit_temperature, is_bounded, reliability
from evaluation.quality.shares import share_interval

FILE = "reliability.svg"
FEWEST_ROWS = 10
MOST_ROWS = 2000
"""Held-out rows that a temperature is fitted on: one number needs no more."""
PERFECT: Curve = ((0.0, 0.0, 0.0, 0.0), (100.0, 100.0, 100.0, 100.0))


@dataclass(frozen=True)
class Calibration:
    """before: bins of the probabilities as the model tells them.  temperature: fitted on other rows, None where there
    were none, or none that has a best one.  after: bins with it.  values: by MLflow name."""

    before: Sequence[Bin]
    temperature: float | None = None
    after: Sequence[Bin] = ()
    values: Mapping[str, float] | None = None


def calibration(
    logits: np.ndarray,
    gold: np.ndarray,
    temperature: float,
    held: tuple[np.ndarray, np.ndarray] | None,
    *,
    bootstrap: int,
) -> Calibration:
    """(N, C) logits of rows, beside their classes. temperature: the model's own.  held: the same of other rows, that
    the new temperature is fitted on."""
    before = reliability(logits / temperature, gold)
    if held is None or len(held[1]) < FEWEST_ROWS:
        return Calibration(before)
    fitted = fit_temperature(*held)
    if not is_bounded(fitted):  # the held rows have no best temperature: the model is right on almost all of them
        return Calibration(before)
    scaled = logits / fitted
    error = calibration_error(scaled, gold).interval(resamples=bootstrap)
    key = "quality/calibration_error_scaled"
    values = {key: error.value, f"{key}_low": error.low, f"{key}_high": error.high, "quality/temperature": fitted}
    return Calibration(before, fitted, reliability(scaled, gold), values)


def fitting_rows(rows: Rows | None) -> Rows | None:
    """At most MOST_ROWS of them, evenly spaced; None where there are too few."""
    if rows is None or len(rows) < FEWEST_ROWS:
        return None
    if len(rows) <= MOST_ROWS:
        return rows
    return rows.take(np.linspace(0, len(rows) - 1, MOST_ROWS).astype(np.int64))


def chart(title: str, models: Mapping[str, Calibration], *, scaled: str | None = None) -> str:
    """Share of right answers against told probability, per cent, with 95 % bands; the diagonal is what it should be.

    scaled: the model that is also shown after temperature scaling.
    """
    curves: dict[str, Curve] = {"perfect calibration": PERFECT}
    curves |= {name: _curve(found.before) for name, found in models.items()}
    if scaled is not None and (temperature := models[scaled].temperature) is not None:
        curves[f"{scaled}, temperature {temperature:.2f}"] = _curve(models[scaled].after)
    return line_chart(title, "confidence, %", "accuracy, %", curves)


def _curve(bins: Sequence[Bin]) -> list[tuple[float, float, float, float]]:
    """One point a bin that has rows, with the interval of its share of right answers."""
    shown = [(b.confidence, share_interval(b.accuracy * b.rows, b.rows)) for b in bins if b.rows]
    return [(100 * confidence, 100 * s.value, 100 * s.low, 100 * s.high) for confidence, s in shown]
