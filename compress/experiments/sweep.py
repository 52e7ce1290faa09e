"""A recipe with `sweep`: one run for every combination of values, under one parent, and quality against MB drawn."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.errors import UserError
from compress.measure.models import MeasuredModel
from compress.recipe import LoadedRecipe
from compress.report.plots import Curve, line_chart
from compress.report.rows import description, title
from compress.run import Run, input_folder
from compress.run.folder import RUNS, resumable
from compress.storage import atomic
from compress.tracking import open_requested_run
from compress.tracking.names import slug

PICTURE = "sweep.svg"
LATENCY = "speed/latency_p50_ms"
LONGEST = 160
"""Bytes of a folder's name; file systems take 255."""
KEPT = 98.0
"""Percent of the teacher's quality that a model of the summary's last line keeps."""


@dataclass(frozen=True)
class Point:
    """One combination: path -> value, and the model that it made."""

    values: Mapping[str, Any]
    measured: MeasuredModel

    @property
    def name(self) -> str:
        """As its folder is called: the last word of each path with its value."""
        return format_point_name(self.values)

    @property
    def megabytes(self) -> float:
        return self.measured.measurement.values["size/disk_mb"]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it: `sweep` is the combination, `values` are the figures."""
        return {"sweep": dict(self.values), **self.measured.as_json()}


def format_point_name(values: Mapping[str, Any]) -> str:
    """`groups-3_size-64`; it names a folder, so one with slashes or a long one is put in shape."""
    told = "_".join(f"{path.rpartition('.')[2]}-{value}" for path, value in values.items())
    return told if "/" not in told and len(told.encode()) <= LONGEST else slug(told)


def run_sweep(
    loaded: LoadedRecipe, options: RunOptions, console: Console, *, verb: str | None, inputs: Mapping[str, Path]
) -> None:
    """Run every combination, each in a folder of its own, and compare them. --resume goes on with those not done.

    Raises UserError for a recipe whose runs score nothing, and whatever a single run raises.
    """
    recipe = loaded.recipe
    assert recipe.sweep is not None
    base = options.output or RUNS / recipe.name
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    points = [dict(zip(recipe.sweep, row, strict=True)) for row in itertools.product(*recipe.sweep.values())]
    method = recipe.method or recipe.stages[-1].kind
    if options.dry_run:
        for values in points:
            console.result(f"would run {format_point_name(values)}")
        return
    with open_requested_run(
        base / "summary",
        options,
        name=f"{base.name}, {len(points)} runs",
        method=method,
        role="summary",
        warn=console.warn,
    ) as log:
        log.params(
            {"method": method, "recipe": recipe.name, **{f"sweep.{k}": str(list(v)) for k, v in recipe.sweep.items()}}
        )
        found: list[Point] = []
        for number, values in enumerate(points, 1):
            console.note(f"{format_point_name(values)}, {number} of {len(points)}")
            folder = base / format_point_name(values)
            said = [Override("sweep", None, f"recipe {recipe.name}: sweep")]
            said += [Override(path, value, f"recipe {recipe.name}: sweep.{path}") for path, value in values.items()]
            one = dataclasses.replace(options, output=folder, resume=options.resume and folder.exists())
            # The last word, after --set, which may have changed the grid.
            run = Run(loaded.and_then(*said).recipe, one, console, verb, given, parent=log.parent)
            with resumable(base):
                report = run.go()
            if report is None or not report.measured:
                raise UserError("this recipe measures nothing to compare", where="sweep")
            found.append(Point(values, _result(report.measured)))
        columns, rows = table(found)
        lines = conclude(found)
        console.table(f"{len(found)} runs", columns, rows)
        for line in lines:
            console.result(line)
        if (plot := draw_plot(recipe.name, found)) is not None:
            picture = base / "summary" / PICTURE
            atomic.write_text(picture, plot)
            log.artifact(picture)
            console.result(f"picture  {picture}")
        log.note(description(columns, rows, lines))
    console.document({"runs": [p.as_json() for p in found], "notes": lines})


def _result(measured: Sequence[MeasuredModel]) -> MeasuredModel:
    return next((m for m in measured if m.subject.role == "student"), measured[-1])


def table(points: Sequence[Point]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows): a run a row."""
    paths = list(points[0].values)
    metric = title(points[0].measured.metric or "")
    columns = (
        *(path.rpartition(".")[2] for path in paths),
        f"{metric} x 100",
        "kept",
        "MB",
        "parameters",
        "latency p50",
    )
    rows = []
    for point in points:
        values = point.measured.measurement.values
        rows.append((
            *(str(point.values[path]) for path in paths), format_quality(point.measured),
            _kept_cell(point.measured), f"{point.megabytes:.2f}", f"{values['size/params_m']:.2f} M",
            f"{values[LATENCY]:.2f} ms" if LATENCY in values else "",
        ))  # fmt: skip
    return columns, rows


def _kept_cell(measured: MeasuredModel) -> str:
    kept, above = measured.quality_kept, measured.kept_above_chance
    return "" if kept is None else f"{kept:.1f} %" + ("" if above is None else f" ({above:.1f} % above chance)")


def format_quality(measured: MeasuredModel) -> str:
    """`90.00 [86.00, 94.00]`, in hundredths; marked where it is an estimate."""
    if measured.quality is None:
        return "undefined"
    value, low, high = (f"{100 * x:.2f}" for x in measured.quality)
    return f"{value} [{low}, {high}]" + (", simulated" if measured.is_simulated else "")


def conclude(points: Sequence[Point]) -> list[str]:
    """The line under the table: the smallest model that keeps KEPT percent of the teacher's quality."""
    enough = [p for p in points if (p.measured.quality_kept or 0.0) >= KEPT]
    if not enough:
        return [f"no run kept {KEPT:g} % of the teacher's quality"]
    best = min(enough, key=lambda p: p.megabytes)
    ratio = best.measured.measurement.values["vs_teacher/size_ratio"]
    return [f"the smallest that keeps {KEPT:g} % of the teacher's quality: {best.name}, {ratio:.2f}x smaller on disk"]


def draw_plot(name: str, points: Sequence[Point]) -> str | None:
    """The picture as SVG: quality against MB, a line for each value of the sweep's first path. None where the metric is
    undefined for every model."""
    first = next(iter(points[0].values))
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for p in sorted(points, key=lambda p: p.megabytes):
        if p.measured.quality is not None:
            curves.setdefault(str(p.values[first]), []).append((p.megabytes, *p.measured.quality))
    shown = dict.fromkeys(str(p.values[first]) for p in points)  # in the order of the recipe
    named: dict[str, Curve] = {f"{first.rpartition('.')[2]} {v}": curves[v] for v in shown if v in curves}
    return line_chart(name, "MB on disk", title(points[0].measured.metric or ""), named) if named else None
