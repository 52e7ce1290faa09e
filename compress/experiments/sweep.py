"""`--sweep`, or a recipe with `sweep`: a run for every combination of values and every seed, under one parent; quality
against MB is drawn."""

from __future__ import annotations

import itertools
import math
import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions, list_set_values
from compress.errors import UserError
from compress.experiments.seeds import list_jobs, list_seeds
from compress.measure.measured_model import MeasuredModel
from compress.recipe import LoadedRecipe, Recipe
from compress.report.plots import Curve, line_chart
from compress.report.rows import description, title
from compress.report.weakness import describe_unbeaten
from compress.run import input_folder
from compress.run.folder import RUNS
from compress.run.jobs import SUMMARY, Job, Outcome, begin_jobs, run_jobs
from compress.storage import atomic
from compress.tracking import open_requested_run
from compress.tracking.names import slug
from evaluation.quality.intervals import mean_interval

PICTURE, TABLE = "sweep.svg", "sweep.json"
LATENCY = "speed/latency_p50_ms"
LONGEST = 160
"""Bytes of a folder's name; file systems take 255."""
KEPT = 98.0
"""Percent of the teacher's quality that a model of the summary's last line keeps."""


@dataclass(frozen=True)
class Point:
    """One combination: path -> value, and the model that it made. seeds: the models of all seeds, `measured` being that
    of the first; empty: one run alone.  teacher: of the first run; None where none was measured."""

    values: Mapping[str, Any]
    measured: MeasuredModel
    seeds: Sequence[MeasuredModel] = ()
    teacher: MeasuredModel | None = None

    @property
    def name(self) -> str:
        """As its folder is called: the last word of each path with its value."""
        return format_point_name(self.values)

    @property
    def runs(self) -> Sequence[MeasuredModel]:
        """The models of all its runs."""
        return self.seeds or (self.measured,)

    @property
    def quality(self) -> tuple[float, float, float] | None:
        """Of the main metric: value, and the ends of its 95 % interval: over the rows of one run, over several seeds
        that of their mean. None where it is undefined."""
        each = [m.quality for m in self.runs]
        if len(each) == 1:
            return each[0]
        values = [one[0] for one in each if one is not None and math.isfinite(one[0])]
        if len(values) < len(each):
            return None
        found = mean_interval(values)
        return found.value, found.low, found.high

    @property
    def megabytes(self) -> float:
        return self.measured.measurement.values["size/disk_mb"]

    @property
    def quality_kept(self) -> float | None:
        """Percent of the teacher's main metric, the mean over seeds; None where it is not known of every run."""
        return _mean([m.quality_kept for m in self.runs])

    @property
    def weakness(self) -> str | None:
        """That the model is not above what needs no encoder; None where it is."""
        return _describe_weakness(self.measured, self.quality)

    @property
    def teacher_weakness(self) -> str | None:
        """The same of the teacher."""
        return None if self.teacher is None else _describe_weakness(self.teacher, self.teacher.quality)

    @property
    def kept_above_chance(self) -> float | None:
        """The same of what the teacher has above the best constant answer."""
        return _mean([m.kept_above_chance for m in self.runs])

    @property
    def latency(self) -> float | None:
        """Median latency in ms, the mean over seeds; None where it is not known of every run."""
        return _mean([m.measurement.values.get(LATENCY) for m in self.runs])

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it: `sweep` is the combination, `values` are the figures."""
        if not self.seeds:
            return {"sweep": dict(self.values), **self.measured.as_json()}
        return {"sweep": dict(self.values), "quality": self.quality, "runs": [m.as_json() for m in self.seeds]}


def _describe_weakness(measured: MeasuredModel, quality: tuple[float, float, float] | None) -> str | None:
    return describe_unbeaten(measured.metric or "", (quality or (math.nan,))[0], measured.measurement.values)


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.mean(known) if len(known) == len(values) else None


def format_point_name(values: Mapping[str, Any]) -> str:
    """`groups-3_size-64`; it names a folder, so a long one, and one with other signs, are put in shape."""
    told = "_".join(f"{path.rpartition('.')[2]}-{value}" for path, value in values.items())
    return told if re.fullmatch(r"[\w.+@=%-]+", told) and len(told.encode()) <= LONGEST else slug(told)


def run_sweep(
    loaded: LoadedRecipe, options: RunOptions, console: Console, *, seeds: int | None, verb: str | None,
    inputs: Mapping[str, Path],
) -> None:  # fmt: skip
    """Run every combination with `seeds` seeds (None: its own alone), each in a folder of its own, and compare them.

    --resume makes the runs that are not done. Raises whatever a single run raises.
    """
    recipe = loaded.recipe
    assert recipe.sweep is not None
    if seeds is not None and "seed" in recipe.sweep:
        raise UserError("the sweep has values of seed", where="--seeds", do="remove one of the two")
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    points = [dict(zip(recipe.sweep, row, strict=True)) for row in itertools.product(*recipe.sweep.values())]

    def list_all(base: Path) -> list[Job]:
        return [job for values in points for job in _list_jobs(loaded, recipe, base, values, seeds, points)]

    if options.dry_run:
        for job in list_all(RUNS / recipe.name):
            console.result(f"would run {job.name}")
        return
    jobs, shared = begin_jobs(recipe.name, list_all, options, verb, given, console)
    method, base = recipe.method or recipe.stages[-1].kind, shared.base
    with open_requested_run(
        base / SUMMARY, options, name=f"{base.name}, {len(jobs)} runs", method=method, role="summary",
        warn=console.warn,
    ) as log:  # fmt: skip
        log.params(
            {"method": method, "recipe": recipe.name, **{f"sweep.{k}": str(list(v)) for k, v in recipe.sweep.items()}}
        )
        if seeds is not None:
            log.params({"seeds": ", ".join(map(str, list_seeds(recipe.seed, seeds)))})
        outcomes = run_jobs(jobs, shared.below(log.parent), console)
        found = _join(points, outcomes)
        columns, rows = table(found)
        lines = conclude(found)
        console.table(f"{len(jobs)} runs", columns, rows)
        for line in lines:
            console.result(line)
        log.table(base / SUMMARY / TABLE, columns, rows)
        if (plot := draw_plot(recipe.name, found)) is not None:
            picture = base / SUMMARY / PICTURE
            atomic.write_text(picture, plot)
            log.artifact(picture)
            console.result(f"picture  {picture}")
        log.note(description(columns, rows, lines))
    console.document({"runs": [p.as_json() for p in found], "notes": lines})


def _list_jobs(
    loaded: LoadedRecipe, recipe: Recipe, base: Path, values: Mapping[str, Any], seeds: int | None,
    points: Sequence[Mapping[str, Any]],
) -> list[Job]:  # fmt: skip
    """The runs of one combination: one, or one for each seed. Raises UserError for values that the recipe refuses."""
    name = format_point_name(values)
    origin = next((one.origin for one in reversed(loaded.overrides) if one.path == "sweep"), "")
    origin = origin if origin.startswith("--sweep") else f"recipe {recipe.name}: sweep"
    said = [Override("sweep", None, origin)]
    # The last word, after --set, which may have changed the grid.
    said += [Override(path, value, f"{origin}: {path}") for path, value in values.items()]
    one = loaded.and_then(*said)
    if seeds is not None:
        return list_jobs(one, base / name, seeds, name, values)
    place, params = f"{list(points).index(values) + 1} of {len(points)}", list_set_values(loaded.overrides)
    return [Job(name, one.recipe, base / name, f"{name}, {place}", params={**params, **values})]


def _join(points: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome]) -> list[Point]:
    """The models of all runs, those of a combination side by side."""
    count, found = len(outcomes) // len(points), []
    for i, values in enumerate(points):
        runs = outcomes[i * count : (i + 1) * count]
        made = [_result(run.measured) for run in runs]
        found.append(Point(values, made[0], made if count > 1 else (), runs[0].find("teacher")))
    return found


def _result(measured: Sequence[MeasuredModel]) -> MeasuredModel:
    return next((m for m in measured if m.subject.role == "student"), measured[-1])


def table(points: Sequence[Point]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows): a combination a row; with several seeds means, and the standard deviation of the metric."""
    paths = list(points[0].values)
    metric, several = title(points[0].measured.metric or ""), bool(points[0].seeds)
    columns = (
        *name_paths(paths), f"{metric} x 100", *(("sd",) if several else ()), "kept", "MB", "parameters", "latency p50",
    )  # fmt: skip
    rows = []
    for point in points:
        spread = (_format_spread(point),) if several else ()
        rows.append((
            *(str(point.values[path]) for path in paths), _format(point.quality, point.measured.is_simulated), *spread,
            _kept_cell(point), f"{point.megabytes:.2f}",
            f"{point.measured.measurement.values['size/params_m']:.2f} M",
            "" if point.latency is None else f"{point.latency:.2f} ms",
        ))  # fmt: skip
    return columns, rows


def name_paths(paths: Sequence[str]) -> list[str]:
    """The last word of each path; the whole path where two end alike."""
    last = [path.rpartition(".")[2] for path in paths]
    return [word if last.count(word) == 1 else path for word, path in zip(last, paths, strict=True)]


def _format_spread(point: Point) -> str:
    values = [m.quality[0] for m in point.runs if m.quality is not None]
    return f"{100 * statistics.stdev(values):.2f}" if len(values) == len(point.runs) else ""


def _kept_cell(point: Point) -> str:
    kept, above = point.quality_kept, point.kept_above_chance
    return "" if kept is None else f"{kept:.1f} %" + ("" if above is None else f" ({above:.1f} % above chance)")


def format_quality(measured: MeasuredModel) -> str:
    """`90.00 [86.00, 94.00]`, in hundredths; marked where it is an estimate."""
    return _format(measured.quality, measured.is_simulated)


def _format(quality: tuple[float, float, float] | None, simulated: bool) -> str:
    if quality is None:
        return "undefined"
    value, low, high = (f"{100 * x:.2f}" for x in quality)
    return f"{value} [{low}, {high}]" + (", simulated" if simulated else "")


def conclude(points: Sequence[Point]) -> list[str]:
    """The lines under the table: of several seeds what the figures are; the smallest model that keeps KEPT percent of
    the teacher's quality, of equally small ones the best. As in the verdict of a comparison, a model that is not above
    its baseline is not named, unless the teacher is not either."""
    count = len(points[0].seeds)
    said = [f"means of {count} seeds; the intervals of the metric are over seeds"] if count else []
    kept, weak = f"{KEPT:g} % of the teacher's quality", points[0].teacher_weakness
    enough = [p for p in points if (p.quality_kept or 0.0) >= KEPT]
    able = [p for p in enough if p.weakness is None or p.teacher_weakness is not None]
    if able:
        best = min(able, key=lambda p: (round(p.megabytes, 2), -(p.quality_kept or 0.0)))
        ratio, weak = best.measured.measurement.values["vs_teacher/size_ratio"], best.teacher_weakness
        line = f"the smallest that keeps {kept}: {best.name}, {ratio:.2f}x smaller on disk"
    elif enough:
        line = f"the runs that kept {kept} are {enough[0].weakness}"
    else:
        line = f"no run kept {kept}"
    return [*said, line if weak is None else f"{line}; but the teacher is {weak}"]


def draw_plot(name: str, points: Sequence[Point]) -> str | None:
    """The picture as SVG: quality against MB, a line for each value of the sweep's first path. None where the metric is
    undefined for every model."""
    first = next(iter(points[0].values))
    curves: dict[str, list[tuple[float, float, float, float]]] = {}
    for p in sorted(points, key=lambda p: p.megabytes):
        if p.quality is not None:
            curves.setdefault(str(p.values[first]), []).append((p.megabytes, *p.quality))
    shown = dict.fromkeys(str(p.values[first]) for p in points)  # in the order of the recipe
    named: dict[str, Curve] = {f"{first.rpartition('.')[2]} {v}": curves[v] for v in shown if v in curves}
    return line_chart(name, "MB on disk", title(points[0].measured.metric or ""), named) if named else None
