"""`compress evaluate --robustness`: how a model's quality falls when its input is disturbed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import NoiseSpec, RunOptions, Watch, unwatched
from compress.data.batches.randomness import stream
from compress.data.tables.table import Rows, Table
from compress.data.tasks.embedding import form_of
from compress.data.text.noise import add_typos_to_queries, add_typos_to_rows
from compress.errors import ExitCode, UserError, did_you_mean, printable
from compress.measure.labelled import inspect_with_names, open_labelled
from compress.measure.models import agree_on_labels
from compress.measure.subject import Subject
from compress.modelfolder.names import label_models, model_label
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_head import EMBEDDING
from compress.predict.cascade import open_predictor
from compress.predict.fastest import get_requested_runtime
from compress.predict.predictor import Predictor
from compress.report.plots import line_chart
from compress.report.rows import description, format_difference, format_figure, in_percent, points_header, title
from compress.run.folder import RUNS
from compress.stages.shared.labelled_data import settings_for
from compress.stages.shared.task_head import check_same_task
from compress.storage import atomic
from compress.storage.disk import take_free_folder
from compress.tracking import TrackedRun, open_requested_run
from evaluation.quality.intervals import Interval
from evaluation.quality.robustness import Figure, Point, differences, robustness

DISTURBANCES: Mapping[str, NoiseSpec] = {"typos": NoiseSpec()}
"""Name of a disturbance → the noise that it is, whatever its rate."""

JSON = "robustness.json"

RATES = (0.0, 0.02, 0.05, 0.1, 0.2)
"""Shares of the letters and digits that are mistyped."""


@dataclass(frozen=True)
class Curve:
    """How one model fares. name: as it is shown.  folder: where it is.  metric: the one that decides.
    queries: whether queries alone are disturbed."""

    name: str
    folder: Path
    metric: str
    points: Sequence[Point]
    queries: bool = False

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it: figures with the bounds of their 95 % intervals."""
        rows = []
        for p in self.points:
            values = {name: _bounds(found) for name, found in p.values.items()}
            rows.append({"rate": p.rate, "values": values, "lost": None if p.lost is None else _bounds(p.lost)})
        return {"name": self.name, "folder": str(self.folder), "metric": self.metric, "points": rows}


@dataclass(frozen=True)
class Difference:
    """One model against another at every rate: `model` minus `against` on the same mistyped rows, paired.

    points: (rate, interval), None where the metric is undefined for one of the two.
    """

    model: str
    against: str
    metric: str
    points: Sequence[tuple[float, Interval | None]]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""
        rows = [{"rate": rate, "value": None if v is None else _bounds(v)} for rate, v in self.points]
        return {"model": self.model, "against": self.against, "metric": self.metric, "points": rows}


def check_disturbance(name: str) -> str:
    """`name` if it is one. Raises UserError with the nearest."""
    if name not in DISTURBANCES:
        known = did_you_mean(name, DISTURBANCES)
        raise UserError(f"unknown disturbance '{printable(name, 60)}'", where="--robustness", do=known)
    return name


def require_metric(kind: str, rows: Rows) -> None:
    """Raise UserError for rows of texts alone, on which an embedding model has a metric beside a parent only."""
    if kind == EMBEDDING and form_of(rows) == "texts":
        raise UserError(
            "texts alone have no metric that typos could lower",
            where="--robustness",
            do="give --data with pairs and a score, or with queries and their documents",
        )


def curve(
    name: str,
    predictor: Predictor,
    rows: Rows,
    disturbance: str,
    max_length: int,
    bootstrap: int,
    watch: Watch = unwatched,
) -> Curve:
    """The model on the same rows, more and more disturbed; the same mistakes for every model."""
    noise = DISTURBANCES[disturbance]
    queries = predictor.task.is_search(rows)
    disturb = add_typos_to_queries if queries else add_typos_to_rows

    def answer(rate: float) -> Mapping[str, Figure]:
        random = stream("robustness", disturbance, str(rate))
        read = disturb(rows, noise.model_copy(update={"rate": rate}), random) if rate else rows
        examples = predictor.encode_rows(read, max_length=max_length)
        with watch(f"scoring {name}, {100 * rate:g} % noise", len(examples), "rows") as progress:
            logits = predictor.logits(examples, told=progress.update)
        found = predictor.task.score(logits, predictor.label_names, examples, read).metrics
        return {metric: found[metric] for metric in metrics if metric in found}

    metrics = predictor.task.choose_metrics(predictor.label_names)
    points = robustness(len(rows), answer, RATES, resamples=bootstrap)
    return Curve(name, predictor.folder, metrics[0], points, queries)


def difference(curves: Sequence[Curve], rows: int, bootstrap: int) -> Difference | None:
    """The first model against the second, which read the same rows; None where there is one alone."""
    if len(curves) < 2:
        return None
    one, other = curves
    found = differences(rows, one.points, other.points, one.metric, resamples=bootstrap)
    return Difference(one.name, other.name, one.metric, [(p.rate, v) for p, v in zip(one.points, found, strict=True)])


def tell(
    console: Console,
    curves: Sequence[Curve],
    apart: Difference | None,
    table: Table,
    split: str,
    disturbance: str,
    folder: Path,
    options: RunOptions,
) -> None:
    """Print the curves, and leave them as JSON and as a plot, and as an MLflow run.

    folder: that of --output; where none was asked for, its name or the next free one is taken."""
    count = len(table.split(split))
    models, compared = [c.as_json() for c in curves], None if apart is None else apart.as_json()
    heads, rows = make_table(models, compared)
    console.table("", heads, rows)
    lines = [
        f"{title(curves[0].metric)} on {count:,} rows of {table.display_name}/{split}; intervals are 95 %",
        f"{disturbance}: share of letters and digits changed{' in the queries' if curves[0].queries else ''}, by "
        f"{', '.join(DISTURBANCES[disturbance].kinds)}",
    ]
    if apart is not None:
        lines.append(
            f"difference: {apart.model} minus {apart.against}, paired row by row on the same rows with typo noise"
        )
    for line in lines:
        console.result(line)
    data = {
        "disturbance": disturbance,
        "dataset": f"{table.display_name}/{split}",
        "dataset_digest": table.measured_fingerprint,
        "rows": count,
        "models": models,
        "difference": compared,
    }
    if options.output is None:
        folder = take_free_folder(folder)
    else:
        atomic.make_folder(folder)
    atomic.write_json(folder / JSON, data)
    shown = {c.name: found for c in curves if (found := _plotted(c))}
    if shown:
        name = title(curves[0].metric)
        heading = f"{name} under {disturbance}, {table.display_name}/{split}"
        label = f"{name}, %" if in_percent(curves[0].metric) else name
        atomic.write_text(folder / "robustness.svg", line_chart(heading, "typo noise, %", label, shown))
    with open_requested_run(
        folder,
        options,
        method="evaluate",
        tags={"compress.robustness": disturbance},
        warn=console.warn,
    ) as run:
        run.dataset(data["dataset"], table.measured_fingerprint, source=table.name, context="evaluation")
        _log(run, curves, apart, data, folder)
        run.note(description(heads, rows, lines))
    console.result("")
    console.result(f"plot     {folder / 'robustness.svg'}" if shown else f"figures  {folder / JSON}")
    for line in run.ui_lines():
        console.result(f"see it   {line}")
    console.document({"folder": str(folder), **data})


def _log(
    run: TrackedRun, curves: Sequence[Curve], apart: Difference | None, data: Mapping[str, Any], folder: Path
) -> None:
    """Figures without a step, by name and rate: `robustness/typos_accuracy_5pct`."""
    kind, main = data["disturbance"], curves[0]
    run.params({"method": "evaluate", "model": str(main.folder), "robustness": kind, "rows": data["rows"]})
    if apart is not None:
        run.params({"against": str(curves[1].folder)})
    values: dict[str, float] = {}
    for p in main.points:
        percent = f"{100 * p.rate:g}pct"
        for name, found in p.values.items():
            values |= _named(f"robustness/{kind}_{name}_{percent}", found)
        if p.lost is not None and p.rate:
            values |= _named(f"robustness/{kind}_{main.metric}_lost_{percent}", p.lost)
    for rate, found in apart.points if apart is not None else ():
        if found is not None:
            values |= _named(f"robustness/{kind}_{main.metric}_difference_{100 * rate:g}pct", found)
    run.metrics(values)
    for path in sorted(folder.glob("robustness.*")):
        run.artifact(path)


def choose_folder(output: Path | None, name: str, disturbance: str) -> Path:
    """The folder that was asked for, or the one whose name the first free folder gets. Raises UserError where it cannot
    be written, and (refused) for a folder that was asked for and holds something."""
    if output is not None and output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise UserError("the folder is not empty", where=str(output), do="name a new folder", code=ExitCode.REFUSED)
    folder = output or RUNS / f"{disturbance}-{name.replace('/', '-')}"
    atomic.require_writable(folder / JSON if folder.is_dir() else folder)
    return folder


def make_table(
    models: Sequence[Mapping[str, Any]], difference: Mapping[str, Any] | None
) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of text, a rate a row. models, difference: as in the document of `--json`."""
    heads = ["typo noise"]
    for model in models:
        heads += [model["name"], f"lost{points_header(model['metric'])}"]
    heads += [] if difference is None else [f"difference{points_header(models[0]['metric'])}"]
    rows = []
    for index, first in enumerate(models[0]["points"]):
        cells = [f"{100 * first['rate']:g} %"]
        for model in models:
            point = model["points"][index]
            metric, lost = model["metric"], point["lost"]
            value = point["values"].get(metric)
            cells.append("undefined" if value is None else format_figure(metric, **value))
            cells.append("" if lost is None or not point["rate"] else format_difference(metric, **lost, sign=""))
        if difference is not None:
            found = difference["points"][index]["value"]
            cells.append("undefined" if found is None else format_difference(models[0]["metric"], **found))
        rows.append(tuple(cells))
    return tuple(heads), rows


def _plotted(c: Curve) -> list[tuple[float, float, float, float]]:
    found = [(p.rate, p.values[c.metric]) for p in c.points if c.metric in p.values]
    unit = 100 if in_percent(c.metric) else 1
    return [(100 * rate, unit * v.value, unit * v.low, unit * v.high) for rate, v in found if math.isfinite(v.low)]


def _bounds(v: Interval) -> dict[str, float]:
    return {"value": v.value, "low": v.low, "high": v.high}


def _named(name: str, v: Interval) -> dict[str, float]:
    return {name: v.value, f"{name}_low": v.low, f"{name}_high": v.high}


def evaluate_robustness(
    model: str, against: str | None, split: str, bootstrap: int, disturbance: str, options: RunOptions
) -> list[Curve]:
    """Quality of one model, or of two on the same rows, while the rows are disturbed more and more."""
    check_disturbance(disturbance)
    folders = [resolve(name, options.tracking_uri) for name in (model, against) if name is not None]
    labels = label_models(folders)
    output = choose_folder(options.output, model_label(folders[0]), disturbance)
    console = Console(quiet=options.quiet, json=options.json)
    info = inspect_with_names(folders[0], folders[1:])
    recipe, table = open_labelled(info, options, console)
    assert recipe.data is not None
    how: dict[str, Any] = {
        "device": options.device,
        "precision": options.precision,
        "runtime": get_requested_runtime(options),
    }
    require_metric(table.task, table.split(split))
    how["settings"] = settings_for(recipe, table)
    predictors = [open_predictor(f, task=table.task, **how) for f in folders]
    for folder, predictor in zip(folders, predictors, strict=True):
        check_same_task(predictor.head, predictor.label_names, table.task, str(folder))
    subjects = [Subject(label, f) for label, f in zip(labels, folders, strict=True)]
    agree_on_labels(subjects, predictors, table.label_names)
    rows = table.split(split)
    curves = []
    for label, predictor in zip(labels, predictors, strict=True):
        console.note(f"scoring {label} on {len(rows)} rows with increasing noise")
        how = {"max_length": recipe.data.max_length, "bootstrap": bootstrap, "watch": console.slow_progress}
        curves.append(curve(label, predictor, rows, disturbance, **how))
    tell(console, curves, difference(curves, len(rows), bootstrap), table, split, disturbance, output, options)
    return curves
