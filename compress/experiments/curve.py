"""`compress distill --curve`: how good control and student are by the number of labelled and of unlabelled rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions, list_set_values
from compress.data.reading.pool import count_default_rows
from compress.errors import UserError
from compress.experiments.sweep import format_quality
from compress.measure.measured_model import MeasuredModel
from compress.recipe import LoadedRecipe
from compress.recipe.schema import Recipe
from compress.report.plots import Curve, line_chart
from compress.report.rows import description, title
from compress.run import Run, input_folder
from compress.run.jobs import SUMMARY, Job, begin_jobs, run_jobs
from compress.run.results import TRAINED_ROWS
from compress.stages.shared.stage import TAUGHT
from compress.storage import atomic
from compress.tracking import open_requested_run

LABELLED, UNLABELLED = "100,300,1000,all", "0,1000,10000,all"
"""The sizes where none are given."""
PICTURE = "curve.svg"
WHERE = "--curve"


@dataclass(frozen=True)
class Grid:
    """Numbers of labelled and of unlabelled rows, ascending; None is all of them."""

    labelled: tuple[int | None, ...]
    unlabelled: tuple[int | None, ...]


@dataclass(frozen=True)
class Cell:
    """One student. labelled, unlabelled: how many rows it was trained on.  control: the best of its labelled rows;
    measured in the first cell of a line alone."""

    labelled: int
    unlabelled: int
    student: MeasuredModel
    control: MeasuredModel | None = None
    gain: Sequence[str] = field(default_factory=tuple)


def parse_sizes(text: str, flag: str, *, least: int) -> tuple[int | None, ...]:
    """`100,300,all` → (100, 300, None). least: the smallest number allowed. Raises UserError."""
    found: list[int | None] = []
    for part in (part.strip().replace("_", "") for part in text.split(",")):
        if part == "all":
            found.append(None)
        elif part.isdecimal() and part.isascii() and least <= int(part) <= 10**12:
            found.append(int(part))
        else:
            raise UserError(
                f"'{part}' is not a number of rows", where=f"{flag} {text}",
                do=f"separate whole numbers from {least} by commas; all stands for every row",
            )  # fmt: skip
    return tuple(sorted(set(found), key=lambda n: float("inf") if n is None else n))


def fit_sizes(sizes: Sequence[int | None], available: int) -> list[int]:
    """The sizes that so many rows allow, each once: `all` and whatever is more become `available`."""
    return sorted({available if n is None else min(n, available) for n in sizes})


def run_curve(
    loaded: LoadedRecipe, options: RunOptions, console: Console, grid: Grid, *, verb: str | None,
    inputs: Mapping[str, Path],
) -> None:  # fmt: skip
    """Distil once for every pair of sizes, each in a folder of its own, and report all. --resume goes on.

    The rows without labels are the unlabelled ones and the training rows whose labels are hidden. The control of a
    number of labels is trained once. Raises UserError for a recipe without a task-specific distillation, for sizes that
    the data does not have, and whatever a single run raises.
    """
    recipe = loaded.recipe
    stages = find_task_stages(recipe)
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    table = Run(recipe, options, console, verb, given).sources.table
    train = len(table.split("train"))
    if recipe.data is not None and recipe.data.pool is not None and recipe.data.pool_rows is None:
        loaded = loaded.and_then(Override("data.pool_rows", count_default_rows(train), WHERE))
    text = len(table.splits["unlabelled"]) if "unlabelled" in table.splits else 0
    plan = [(n, u) for n in fit_sizes(grid.labelled, train) for u in fit_sizes(grid.unlabelled, text + train - n)]
    if options.dry_run:
        for labelled, unlabelled in plan:
            console.result(f"would run {name_cell(labelled, unlabelled)}")
        return

    params = list_set_values(loaded.overrides)

    def list_jobs(base: Path) -> list[Job]:
        jobs = []
        for number, (labelled, unlabelled) in enumerate(plan, 1):
            name = name_cell(labelled, unlabelled)
            first = all(before != labelled for before, _ in plan[: number - 1])
            cut = loaded.and_then(*list_overrides(stages, stages[-1], labelled, unlabelled, control=first)).recipe
            jobs.append(Job(name, cut, base / name, f"{name}, {number} of {len(plan)}", params=params))
        return jobs

    jobs, shared = begin_jobs(f"{recipe.name}-curve", list_jobs, options, verb, given, console)
    base = shared.base
    cells: list[Cell] = []
    method = recipe.method or recipe.stages[-1].kind
    with open_requested_run(
        base / SUMMARY, options, name=f"{base.name}, {len(plan)} runs", method=method, role="summary",
        warn=console.warn,
    ) as log:  # fmt: skip
        log.params({"method": method, "recipe": recipe.name})
        outcomes = run_jobs(jobs, shared.below(log.parent), console)
        for (labelled, _), outcome in zip(plan, outcomes, strict=True):
            student = outcome.find("student")
            if student is None:
                raise UserError("this recipe measures nothing to compare", where=WHERE)
            lines = [] if outcome.gain is None else [outcome.gain]
            used = int(student.measurement.values.get(f"{TRAINED_ROWS}{TAUGHT}", 0))
            cells.append(Cell(labelled, used, student, outcome.control, lines))
        columns, rows = build_table(cells)
        lines = conclude(cells)
        console.table(f"{title(cells[0].student.metric or '')} x 100 by training rows", columns, rows)
        for line in lines:
            console.result(line)
        picture = base / SUMMARY / PICTURE
        if (plot := draw_plot(recipe.name, cells)) is not None:
            atomic.write_text(picture, plot)
            log.artifact(picture)
            console.result(f"picture  {picture}")
        log.note(description(columns, rows, lines))
    console.document({"cells": [as_json(cell) for cell in cells], "notes": lines})


def find_task_stages(recipe: Recipe) -> list[int]:
    """The stages that can learn from text without labels. Raises UserError where there is none, or no data."""
    found = [i for i, stage in enumerate(recipe.stages) if stage.reads_unlabelled()]
    if not found or recipe.data is None:
        raise UserError(
            "the recipe has no task-specific distillation", where=WHERE, do="use one that has, such as distilbert-task"
        )
    return found


def list_overrides(
    stages: Sequence[int], last: int, labelled: int, unlabelled: int, *, control: bool
) -> list[Override]:
    """What a recipe says for one pair of sizes."""
    values: dict[str, Any] = {"data.labelled_rows": labelled, "data.unlabelled_rows": unlabelled}
    values |= {f"stages.{index}.use_unlabelled": unlabelled > 0 for index in stages}
    if not control:
        values[f"stages.{last}.control"] = False
    return [Override(path, value, WHERE) for path, value in values.items()]


def name_cell(labelled: int, unlabelled: int) -> str:
    """The folder of a run."""
    return f"{labelled}-labelled-{unlabelled}-unlabelled"


def build_table(cells: Sequence[Cell]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows): a number of labelled rows a row, its control and the students by their text, with intervals."""
    texts = sorted({cell.unlabelled for cell in cells})
    columns = ("labelled rows", "control", *(_name_text(n) for n in texts))
    rows = []
    for labelled in sorted({cell.labelled for cell in cells}):
        line = {cell.unlabelled: cell for cell in cells if cell.labelled == labelled}
        control = find_control(cells, labelled)
        students = [format_quality(line[n].student) if n in line else "" for n in texts]
        rows.append((f"{labelled:,}", "" if control is None else format_quality(control), *students))
    return columns, rows


def _name_text(count: int) -> str:
    return f"student, {count:,} texts" if count else "student, no text"


def find_control(cells: Sequence[Cell], labelled: int) -> MeasuredModel | None:
    """The control of a number of labelled rows."""
    return next((c.control for c in cells if c.labelled == labelled and c.control is not None), None)


def conclude(cells: Sequence[Cell]) -> list[str]:
    """For each number of labels, how many labels its best student replaces: those that a control needs to be as good.
    The last line says of what these figures are."""
    lines = []
    counts = sorted({cell.labelled for cell in cells})
    controls = {n: _value(find_control(cells, n)) for n in counts}
    for labelled in counts:
        students = [c for c in cells if c.labelled == labelled and c.unlabelled and c.student.quality is not None]
        if not students or controls[labelled] is None:
            continue
        best = max(students, key=lambda c: _value(c.student) or 0.0)
        value = _value(best.student) or 0.0
        enough = [n for n in counts if n > labelled and (controls[n] or 0.0) >= value]
        told = f"{labelled:,} labels and {best.unlabelled:,} texts: {100 * value:.2f}"
        if value <= (controls[labelled] or 0.0):
            lines.append(f"{told}, no more than the labels alone")
        elif enough:
            lines.append(f"{told}, which labels alone reach between {_before(counts, enough[0]):,} and {enough[0]:,}")
        elif labelled < counts[-1]:
            lines.append(f"{told}, more than {counts[-1]:,} labels alone")
    return [*lines, "one run a cell; the intervals are over rows, and do not hold the spread of seeds"]


def _before(counts: Sequence[int], count: int) -> int:
    return counts[counts.index(count) - 1]


def _value(measured: MeasuredModel | None) -> float | None:
    return None if measured is None or measured.quality is None else measured.quality[0]


def draw_plot(name: str, cells: Sequence[Cell]) -> str | None:
    """The picture as SVG: quality by labelled rows, a line for the control and for each number of texts."""
    curves: dict[str, Curve] = {}
    counts = sorted({cell.labelled for cell in cells})
    for label, models in (
        ("control", {n: find_control(cells, n) for n in counts}),
        *(
            (_name_text(u), {c.labelled: c.student for c in cells if c.unlabelled == u})
            for u in sorted({cell.unlabelled for cell in cells})
        ),
    ):
        points = [(float(n), *m.quality) for n, m in sorted(models.items()) if m is not None and m.quality is not None]
        if points:
            curves[label] = points
    metric = title(cells[0].student.metric or "")
    return line_chart(name, "labelled rows", metric, curves) if curves else None


def as_json(cell: Cell) -> dict[str, Any]:
    """The document of one cell."""
    control = {} if cell.control is None else {"control": cell.control.as_json(), "gain": list(cell.gain)}
    return {
        "labelled": cell.labelled, "unlabelled": cell.unlabelled, "student": cell.student.as_json(), **control,
    }  # fmt: skip
