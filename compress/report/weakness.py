"""That a measured model is not above what needs no encoder."""

from __future__ import annotations

from collections.abc import Mapping

from compress.contracts import BASELINE, BASELINES
from compress.report.rows import format_figure
from evaluation.quality.chance import find_unbeaten


def describe_unbeaten(metric: str, value: float, values: Mapping[str, float]) -> str | None:
    """`not better than` what needs no encoder, on the rows that a model was measured on; None where it is. value: of
    its main metric.  values: all its figures."""
    levels = {told: values[f"{BASELINE}{name}"] for name, told in BASELINES.items() if f"{BASELINE}{name}" in values}
    if metric == "accuracy" and "quality/majority_baseline" in values:
        levels["the most common label"] = values["quality/majority_baseline"]
    name = find_unbeaten(value, levels)
    return None if name is None else f"not better than {name}, {format_figure(metric, levels[name])}"
