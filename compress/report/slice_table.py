"""Slices as a table of numbers, in the form that MLflow shows: the artifact slices.json of every measured run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice

COLUMNS = (
    "by", "slice", "rows", "metric", "value", "low", "high", "parent", "difference", "difference low",
    "difference high", "p", "adjusted p", "verdict", "note", "resamples",
)  # fmt: skip
"""low, high: of the 95 % interval.  difference: model minus parent, paired.  adjusted p: corrected for the number of
slices.  note: why there is no figure.  Figures are shares from 0 to 1; what is not known is null."""


def slices_to_table(found: Sequence[Slice], metric: str) -> tuple[tuple[str, ...], list[list[Any]]]:
    """(columns, rows), one row per slice, six digits each; `slices_from_json` reads them."""
    rows = []
    for s in found:
        value, apart = (_interval(one) for one in (s.value, s.difference))
        known = s.value or s.difference
        row = [s.by, s.name, s.rows, metric, *value, s.parent, *apart, s.p_value, s.adjusted, s.verdict, s.why]
        rows.append([_short(cell) for cell in row] + [None if known is None else known.resamples])
    return COLUMNS, rows


def slices_from_json(text: str | None) -> tuple[str, list[Slice]]:
    """(metric, slices) of a slices.json: a table, or the nested form of version 0.1; ("", []) for anything else."""
    try:
        content = json.loads(text or "")
        if "slices" in content:
            return str(content["metric"]), [Slice.from_json(one) for one in content["slices"]]
        rows = [dict(zip(content["columns"], row, strict=True)) for row in content["data"]]
        return (str(rows[0]["metric"]) if rows else ""), [_slice(row) for row in rows]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", []


def _interval(one: Interval | None) -> list[float | None]:
    return [None, None, None] if one is None else [one.value, one.low, one.high]


def _short(cell: Any) -> Any:
    return float(f"{cell:.6g}") if isinstance(cell, float) else cell


def _slice(row: dict[str, Any]) -> Slice:
    def interval(name: str, low: str, high: str) -> Interval | None:
        if row[name] is None:
            return None
        return Interval(row[name], row[low], row[high], row["rows"], row["resamples"])

    value, apart = interval("value", "low", "high"), interval("difference", "difference low", "difference high")
    parent, p, adjusted, why = (row[key] for key in ("parent", "p", "adjusted p", "note"))
    return Slice(str(row["by"]), str(row["slice"]), int(row["rows"]), value, parent, apart, p, adjusted, str(why))
