"""The comparison as one table: for the terminal, as Markdown, as CSV, as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from compress.compare.frontier import DOMINATED, ON, OPEN, UNRANKED, RankedRow
from compress.compare.query import NAME, PARETO, QUALITY, value_of
from compress.compare.rows import DATA, LATENCY, MISSING, RUNTIME, SIZE, SPEEDUP, Row
from compress.compare.verdict import Verdict
from compress.errors import printable
from compress.report.csv_text import format_csv
from compress.report.rows import figures, format_difference, format_figure, in_percent, title

DIFFERENCE = "difference"
USUAL = (
    PARETO,
    NAME,
    QUALITY,
    DIFFERENCE,
    SIZE,
    "size/params_m",
    LATENCY,
    "speed/throughput_sps",
    SPEEDUP,
    RUNTIME,
    DATA,
)
"""Columns where none are named; one that no row has is left out."""
SPARED = ("size/params_m", "speed/throughput_sps", DIFFERENCE, RUNTIME, DATA, SPEEDUP)
"""Columns that a narrow terminal does without, the first one first."""
GAP = 3  # characters between two columns

_TITLES = {
    PARETO: "Pareto",
    NAME: "model",
    SIZE: "MB",
    "size/params_m": "parameters, M",
    LATENCY: "p50, ms",
    "speed/throughput_sps": "rows/s",
    SPEEDUP: "faster",
}


def columns(rows: Sequence[Row], asked: Sequence[str]) -> list[str]:
    """The keys that are shown."""
    if asked:
        return list(asked)
    found = {key: {value for row in rows if (value := _get_value(row, key)) is not None} for key in USUAL}
    # One runtime and one data set for all are said below the table.
    return [key for key in USUAL if key == PARETO or len(found[key]) > (key in (RUNTIME, DATA))]


def fitting(judged: Sequence[RankedRow], keys: Sequence[str], width: int) -> list[str]:
    """The keys of a table that is at most so many characters wide, as far as `SPARED` columns help."""
    rows, left = [j.row for j in judged], list(keys)
    for spared in (None, *SPARED):
        left = [key for key in left if key != spared]
        lines = [heads(left, rows), *(cells(j, left) for j in judged)]
        if sum(max(map(len, column)) + GAP for column in zip(*lines, strict=True)) <= width:
            break
    return left


def heads(keys: Sequence[str], rows: Sequence[Row]) -> list[str]:
    """What people call the columns."""
    metrics = {row.metric for row in rows if row.metric is not None}
    quality = title(next(iter(metrics))) if len(metrics) == 1 else "quality"
    shares = {metric for metric in metrics if in_percent(metric)}
    points = "" if not shares else ", points" if shares == metrics else ", points where in %"
    own = {QUALITY: quality, DIFFERENCE: f"against reference{points}"}
    return [own.get(key) or _TITLES.get(key) or _get_title(key) for key in keys]


def cells(judged: RankedRow, keys: Sequence[str]) -> list[str]:
    """A row as text; what it lacks is a dash."""
    return [cell(judged, key) for key in keys]


def cell(judged: RankedRow, key: str) -> str:
    """One figure as text."""
    row = judged.row
    if key == PARETO:
        return {ON: "yes", OPEN: f"maybe: {judged.by}", DOMINATED: f"no: {judged.by}"}.get(judged.place, MISSING)
    if key == QUALITY:
        return quality_cell(row)
    if key in (RUNTIME, DATA):
        return printable(_get_value(row, key) or MISSING, 60)
    if key == DIFFERENCE:
        found = _get_difference(row)
        return MISSING if found is None else format_difference(row.metric or "", *found)
    value = value_of(row, key)
    if value is None:
        return MISSING
    return printable(value, 200) if isinstance(value, str) else _format_figure(key, value)


def sortable(judged: RankedRow, key: str) -> float | str | None:
    """What a cell is sorted by."""
    if key == PARETO:
        return float((ON, OPEN, DOMINATED, UNRANKED).index(judged.place))
    found = _get_difference(judged.row) if key == DIFFERENCE else None
    return found[0] if found else value_of(judged.row, key)


def quality_cell(row: Row) -> str:
    """The main metric with its interval."""
    if row.quality is None or row.metric is None:
        return MISSING
    return format_figure(row.metric, *row.quality) + (" (simulated)" if row.simulated else "")


def document(judged: Sequence[RankedRow], notes: Sequence[str], verdict: Verdict | None = None) -> dict[str, Any]:
    """What --json prints."""
    rows = []
    for j in judged:
        row = j.row
        rows.append({
            "name": row.name, "run": row.facts.get("run"), "folder": row.facts.get("folder"), "metric": row.metric,
            "frontier": j.place, "by": j.by, "paired": j.paired if j.place == DOMINATED else None,
            "simulated": row.simulated, "missing": row.missing, "values": dict(row.values),
            "context": dict(row.context), "facts": dict(row.facts),
        })  # fmt: skip
    return {"rows": rows, "notes": list(notes), "verdict": None if verdict is None else verdict.as_json()}


def as_csv(judged: Sequence[RankedRow], keys: Sequence[str]) -> str:
    """Numbers as numbers, an interval as two more columns; what is missing is empty."""
    names: list[str] = []
    for key in keys:
        names += [key, f"{key}_low", f"{key}_high"] if key in (QUALITY, DIFFERENCE) else [key]
    names += ["pareto_by"] if PARETO in keys else []
    lines: list[list[object]] = [[*names]]
    for j in judged:
        line: list[object] = []
        for key in keys:
            if key in (QUALITY, DIFFERENCE):
                found = j.row.quality if key == QUALITY else _get_difference(j.row)
                line += [None, None, None] if found is None else found
            else:
                line.append(j.place if key == PARETO else value_of(j.row, key))
        lines.append([*line, j.by] if PARETO in keys else line)
    return format_csv(lines)


def _get_value(row: Row, key: str) -> Any:
    own = {DIFFERENCE: lambda: _get_difference(row), RUNTIME: lambda: row.runtime, DATA: lambda: row.dataset}
    return own[key]() if key in own else value_of(row, key)


def _get_difference(row: Row) -> tuple[float, float | None, float | None] | None:
    key = f"vs_teacher/{row.metric}_difference"
    found = [row.values.get(k) for k in (key, f"{key}_low", f"{key}_high")]
    return None if found[0] is None else (found[0], found[1], found[2])


def _get_title(key: str) -> str:
    """The name that the other tables give a figure; its key where they have none."""
    for label, keys, _ in figures(None):
        if keys[0] == key:
            return label.strip()
    return key


def _format_figure(key: str, value: float) -> str:
    if key in (SIZE, LATENCY):
        return f"{value:,.2f}"
    if key in _TITLES:
        return f"{value:.2f}x" if key == SPEEDUP else f"{value:,.2f}" if value < 100 else f"{value:,.0f}"
    for _, keys, form in figures(None):
        if keys[0] == key:
            return form(value)
    return f"{value:.4g}"
