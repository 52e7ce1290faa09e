"""Measured models, made by hand: answers that are right or wrong row by row, and figures of cost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from compress.contracts import Measurement
from compress.data.task import ScoredAnswers
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import Subject
from evaluation.quality.draws import of_mean

ROWS = 200
CONTEXT = {
    "device": "a processor", "threads": "1", "runtime": "torch 2.10, packed", "precision": "fp32",
    "latency_shape": "batch 1 x 128 tokens", "dataset": "opinions/test", "dataset_digest": "abc", "rows": str(ROWS),
    "metric": "accuracy", "task": "classification", "repeats": "50", "throughput_mix": "mix", "contaminated": "no",
}  # fmt: skip


def scored_rows(right: int | Sequence[bool]) -> ScoredAnswers:
    """Answers of which the first `right` are right, or those that the row says."""
    rows = np.arange(ROWS) < right if isinstance(right, int) else np.asarray(right)
    return ScoredAnswers(len(rows), {"accuracy": of_mean(rows)}, right=rows)


def measured_model(
    role: str, right: int | None = 180, *, name: str | None = None, folder: str = "m", mb: float = 10.0,
    ms: float | None = 5.0, values: dict[str, float] | None = None, context: dict[str, str] | None = None,
    simulated: bool = False, **more: Any,
) -> MeasuredModel:  # fmt: skip
    """A model that answered the first `right` rows right; None: its metric is undefined on these rows.

    simulated: its integers were computed in floats, as `measure` names the figures of such a model.
    """
    found = {"size/disk_mb": mb, "size/params_m": mb / 4}
    if right is not None:
        kind = "fake_quantized/" if simulated else "quality/"
        share = right / ROWS
        found |= {
            f"{kind}accuracy": share,
            f"{kind}accuracy_low": share - 0.04,
            f"{kind}accuracy_high": share + 0.04,
        }
    if simulated:
        found["size/integer_mb"] = mb / 4
    elif ms is not None:
        found["speed/latency_p50_ms"] = ms
    scored = ScoredAnswers(ROWS, {}) if right is None else scored_rows(right)
    subject = Subject(name or role, Path(folder), role)
    told = {**CONTEXT, **(context or {})}
    return MeasuredModel(
        subject, Measurement({**found, **(values or {})}, told), scored=scored, metric="accuracy", **more
    )
