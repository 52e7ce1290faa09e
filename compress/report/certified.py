"""Figures with intervals as certificates hold them, `value`, `low` and `high`, and as they are told to people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from compress.report.rows import format_figure, title

ENDS = {"value": "", "low": "_low", "high": "_high"}


def read_ends(values: Mapping[str, float], name: str) -> dict[str, float | None]:
    """A measured figure and the ends of its interval; None where one is not known. name: of MLflow."""
    return {key: values.get(f"{name}{end}") for key, end in ENDS.items()}


def format_ends(row: Mapping[str, Any], scale: float, sign: str = "") -> str:
    """`value [low, high]` with two digits. scale: of all three.  sign: "+" where it is always written."""
    value, low, high = (row[key] for key in ENDS)
    if value is None:
        return "undefined"
    shown, *ends = (f"{scale * x:{sign}.2f}" for x in (value, low, high) if x is not None)
    return shown if len(ends) < 2 else f"{shown} [{', '.join(ends)}]"


def format_metric(row: Mapping[str, Any], metric: str) -> str:
    """`nDCG@10 0.228 [0.201, 0.255]`: a metric with its figure as the tables show it."""
    value, low, high = (row.get(key) for key in ENDS)
    return f"{title(metric)} {'undefined' if value is None else format_figure(metric, value, low, high)}"
