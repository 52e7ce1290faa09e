"""Rows of a comparison, made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from compress.compare.rows import Row
from evaluation.quality.draws import of_mean
from evaluation.quality.pairing import resample_metric

CONTEXT = {
    "device": "a processor", "threads": "1", "runtime": "torch, packed", "latency_shape": "batch 1 x 128 tokens",
    "dataset": "opinions/test", "dataset_digest": "abc", "rows": "200", "metric": "accuracy",
}  # fmt: skip


def row(name: str, right: int | None = 180, mb: float | None = 10.0, ms: float | None = 5.0, **more: Any) -> Row:
    """A model that answered the first `right` of 200 rows right."""
    values = dict(more.pop("values", {}))
    resampled = None
    if right is not None:
        resampled = resample_metric(
            200, of_mean(np.arange(200) < right), metric="accuracy", data="abc/test", resamples=200
        )
        low, high = np.quantile(resampled.figures, [0.025, 0.975])
        values |= {"quality/accuracy": right / 200, "quality/accuracy_low": low, "quality/accuracy_high": high}
    values |= {} if mb is None else {"size/disk_mb": mb}
    values |= {} if ms is None else {"speed/latency_p50_ms": ms}
    context = CONTEXT | more.pop("context", {})
    facts = {"method": "distill", "recipe": "small", "student.layers": "3"} | more.pop("facts", {})
    paired = more.pop("paired", True)
    assert not more
    return Row(name, values, context, facts, None, resampled if paired else None)
