"""The waterfall of a chain: what each stage cost in quality and gained in size and latency, as table and picture.

All models were measured in one session, latencies in turn; the differences in quality are paired row by row.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compress.measure.measured_model import MeasuredModel
from compress.report.plots import Level, waterfall_chart
from compress.report.rows import markdown, title
from compress.run.gain import RESAMPLES

TABLE, PICTURE = "waterfall.json", "waterfall.svg"
COLUMNS = ("MB", "smaller", "latency p50", "faster", "runtime")


@dataclass(frozen=True)
class Step:
    """One model of the chain, in its order. name: of the stage, or of the model that the chain starts from."""

    name: str
    measured: MeasuredModel

    @property
    def values(self) -> Mapping[str, float]:
        return self.measured.measurement.values

    @property
    def megabytes(self) -> float:
        return self.values["size/disk_mb"]

    @property
    def latency(self) -> float | None:
        return self.values.get("speed/latency_p50_ms")

    @property
    def runtime(self) -> str:
        """What computed its answers."""
        return "simulated" if self.measured.is_simulated else self.measured.measurement.context["runtime"].split(" ")[0]


def rows(steps: Sequence[Step]) -> list[dict[str, Any]]:
    """A row for each model, as JSON: its figures, and against the one before it the paired difference in the main
    metric (value, low, high; shares from 0 to 1) and how many times smaller and faster it is. The last row is the last
    model against the first."""
    found = [_row(step, steps[i - 1] if i else None) for i, step in enumerate(steps)]
    return [*found, {**_row(steps[-1], steps[0]), "stage": "total"}]


def _row(step: Step, before: Step | None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "stage": step.name,
        "metric": step.measured.metric,
        "quality": step.measured.quality,
        "disk_mb": step.megabytes,
        "latency_p50_ms": step.latency,
        "runtime": step.runtime,
    }
    if before is None:
        return row
    ours, theirs, metric = step.measured.scored, before.measured.scored, step.measured.metric
    if ours is not None and theirs is not None and metric in {*ours.metrics} & {*theirs.metrics}:
        found = ours.difference(theirs, str(metric), resamples=RESAMPLES)
        row["difference"] = (found.value, found.low, found.high)
    row["times_smaller"] = before.megabytes / step.megabytes
    if step.latency is not None and before.latency is not None:
        row["times_faster"] = before.latency / step.latency
    return row


def table(found: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) for people."""
    metric = title(found[0]["metric"] or "")
    columns = ("stage", f"{metric} x 100", "change from previous", *COLUMNS)
    return columns, [_cells(row) for row in found]


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    quality, change, ms = row["quality"], row.get("difference"), row["latency_p50_ms"]
    return (
        row["stage"],
        "" if quality is None else _interval(quality, ".2f"),
        "" if change is None else _interval(change, "+.2f"),
        f"{row['disk_mb']:.2f}",
        _times(row.get("times_smaller")),
        "" if ms is None else f"{ms:.2f} ms",
        _times(row.get("times_faster")),
        row["runtime"],
    )


def _interval(found: Sequence[float], form: str) -> str:
    value, low, high = (format(100 * x, form) for x in found)
    return f"{value} [{low}, {high}]"


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def lines(steps: Sequence[Step]) -> list[str]:
    """What must be known to read it."""
    said = ["waterfall: latencies measured alternately in one session; differences paired row by row, 95 % intervals"]
    ways = list(dict.fromkeys(step.runtime for step in steps if step.runtime != "simulated"))
    if len(ways) > 1:
        said.append(f"latencies were measured with {' and '.join(ways)}: a change of runtime is part of the gain")
    return said


def note(found: Sequence[Mapping[str, Any]]) -> str:
    """The table in Markdown, for the description of the run."""
    return markdown(*table(found))


def figures(found: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """By MLflow name: for each stage points of the main metric, and MB and milliseconds that it took away."""
    values: dict[str, float] = {}
    for before, row in itertools.pairwise(found[:-1]):
        name = f"waterfall/{row['stage']}"
        if "difference" in row:
            parts = zip(("", "_low", "_high"), row["difference"], strict=True)
            values |= {f"{name}/points{part}": 100 * value for part, value in parts}
        values[f"{name}/mb_saved"] = before["disk_mb"] - row["disk_mb"]
        if row["latency_p50_ms"] is not None and before["latency_p50_ms"] is not None:
            values[f"{name}/ms_saved"] = before["latency_p50_ms"] - row["latency_p50_ms"]
    return values


def picture(name: str, found: Sequence[Mapping[str, Any]]) -> str:
    """The same as SVG."""
    steps = found[:-1]
    metric = f"{title(steps[0]['metric'] or '')} x 100"
    quality = [None if row["quality"] is None else Level(*(100 * x for x in row["quality"])) for row in steps]
    panels = {
        metric: quality,
        "MB on disk": [Level(row["disk_mb"]) for row in steps],
        "latency p50, ms": [None if (ms := row["latency_p50_ms"]) is None else Level(ms) for row in steps],
    }
    return waterfall_chart(name, [row["stage"] for row in steps], panels, more_is_better={metric})
