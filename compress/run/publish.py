"""Publishes the measured figures: to the terminal, to the model's card and to MLflow."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Sequence
from typing import Any

from compress.console import Console
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.measure import calibration
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import kind_of, shown_name
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.cascade import inspect
from compress.modelfolder.meta import SlicesNote
from compress.modelfolder.names import model_label
from compress.report.rows import (
    GROUPS_NOTE,
    SLICES_NOTE,
    Reference,
    churn_sentence,
    churn_table,
    comparison,
    conditions,
    description,
    groups_sentence,
    headline,
    slices_sentence,
    slices_table,
    storage_sentence,
)
from compress.report.slice_table import slices_to_table
from compress.run.gain import Gain
from compress.storage import atomic
from compress.tracking import TrackedRun
from compress.tracking.names import name_conditions
from evaluation.quality.slices import find_worse

WORST = 5  # groups in a card's table
CHURN, SLICES, GROUPS, RESAMPLED = "churn.json", "slices.json", "groups.json", "resampled.json"
"""Artifacts of every measured run; RESAMPLED is what pairs two runs by their rows."""

Child = Callable[[str], TrackedRun]


def log_measured(
    log: TrackedRun,
    console: Console,
    measured: Sequence[MeasuredModel],
    *,
    table: Table,
    method: str,
    told: Collection[str],
    child: Child,
    result: str = "student",
    more: Sequence[str] = (),
    apart: Collection[str] = (),
    more_note: str = "",
    reference: Reference = "teacher",
    gain: Gain | None = None,
    annotated: bool = False,
) -> list[str]:
    """Report what was measured; returns the lines under the table.

    The student (or the only model) is the run's own result; the control, and the teachers that no run of ours made,
    become child runs, so that the page shows them side by side. told: roles of the teachers that a run of ours made.
    child: opens the tracked run of a role.  result: role of the run's own result, if there is one.  more: lines to add.
    apart: roles that another table reports.  more_note: Markdown to add to the run's description.
    reference: what the model is called that the others are compared with.  gain: over the control, where one was
    trained.  annotated: the folders hold these figures already.
    """
    shown = [m for m in measured if m.subject.role not in apart]
    found = [m.measurement for m in shown]
    names = [shown_name(m.subject, reference) for m in shown]
    columns, rows = comparison(names, found, reference)
    teacher = next((m for m in measured if m.subject.role == "teacher"), None)
    main = next((m for m in measured if m.subject.role == result), measured[0])
    metric = main.metric or ""
    lines = conditions(main.measurement, found) + churn_sentence(main.churn, reference)
    lines += slices_sentence(main.slices, metric) + groups_sentence(main.groups, metric)
    lines += [GROUPS_NOTE] if main.groups else []
    lines += ([] if gain is None else [gain.sentence]) + _storage(main) + [*more]
    if teacher is not None and teacher.subject.ensemble is not None:
        lines.insert(0, f"{teacher.subject.name}: {teacher.subject.ensemble.sentence()}")
    console.table("", columns, rows)
    for line in lines:
        console.result(line)
    note = description(columns, rows, lines) + (f"\n\n{more_note}" if more_note else "")
    if not annotated:
        for m in measured:
            if m is not main and kind_of(m.subject.role) != "teacher":  # a teacher's folder is not ours to write into
                annotate(m, None)
        annotate(main, teacher if teacher is not main else None)
    _log(log, main, table, method, note, reference)
    _draw(log, main, measured, reference)
    for m in measured:
        if m is main or m.subject.role in told:
            continue
        with child(m.subject.role) as run:
            own = "teacher" if kind_of(m.subject.role) == "teacher" else method
            _log(run, m, table, own, note, reference)
    return lines


def _storage(main: MeasuredModel) -> list[str]:
    config = inspect(main.subject.folder).config
    stored_once = config.sharing is not None or config.layer_groups is not None or config.project_first
    return storage_sentence(main.measurement.values) if stored_once else []


def annotate(m: MeasuredModel, baseline: MeasuredModel | None) -> None:
    """Write the figures into the model's compress.json and card."""
    meta = modelfolder.inspect(m.subject.folder).meta
    theirs = baseline.measurement if baseline else None
    modelfolder.annotate(m.subject.folder, meta.with_measurement(m.measurement, theirs, slices_note(m)))


def slices_note(m: MeasuredModel) -> SlicesNote | None:
    """On which groups a model fails more than its parent, the worst of them in a table; None where none was tested."""
    sentence = slices_sentence(m.slices, m.metric or "")
    if not sentence:
        return None
    lines = tuple(line.removeprefix("slices: ") for line in (*sentence, SLICES_NOTE))  # the heading says it
    failing = find_worse(m.slices)[:WORST]
    columns, rows = slices_table(failing, m.metric or "") if failing else ((), [])
    return SlicesNote(lines=lines, columns=columns, rows=tuple(rows))


def tell(console: Console, report: Any, log: TrackedRun, table: Table | None, *, for_any_task: bool) -> None:
    """The lines a person needs next: where the model is, how to use it, how to see it. for_any_task: it was made from
    text alone."""
    model = shlex.quote(str(report.model))
    for row in report.findings:
        console.result(f"finding  {row['stage']}: {row['finding']}; {row['do']}")
    console.result("")
    console.result(f"model    {report.model}")
    if report.measured and table is not None:
        example = task_of(table.task).example_for(table.columns)
        console.result(f"use it   compress predict {model} {example}")
    elif for_any_task and modelfolder.is_model_folder(report.model):
        console.result(f"use it   compress finetune --model {model} --data DATA")
    for line in log.ui_lines():
        console.result(f"see it   {line}")


def _log(run: TrackedRun, m: MeasuredModel, table: Table, method: str, note: str, reference: Reference) -> None:
    context = m.measurement.context
    info = inspect(m.subject.folder)
    dataset = (context["dataset"], context["dataset_digest"])
    params = {
        "method": method,
        "device": context["device"],
        "threads": context["threads"],
        "runtime": context["runtime"],
        "precision": context["precision"],
        "latency.shape": context["latency_shape"],
        # Under one name for teachers too: a run that lacks an axis is left out of the page's charts.
        "student.layers": info.config.depth,
        "student.hidden": info.config.hidden,
    }
    run.dataset(*dataset, source=table.name, context="evaluation")
    if m.subject.ensemble is None:
        run.params(params)
        run.model(
            m.subject.folder,
            name=model_label(m.subject.folder) if m.subject.name == "teacher" else m.subject.name,
            model_type=method,
            params={
                "role": m.subject.role, "layers": info.config.depth, "hidden": info.config.hidden,
                "fingerprint": m.subject.fingerprint, **_plain(context)
            },
            metrics=m.measurement.values,
            dataset=dataset,
        )  # fmt: skip
    else:  # no model of its own: each of them is one
        run.params({**params, "teachers": m.subject.ensemble.sentence()})
        run.metrics(m.measurement.values)
    run.tags(build_measurement_tags(m))
    if m.churn:
        run.table(run.folder / CHURN, *churn_table(m.churn, reference))
    if m.slices:
        run.table(run.folder / SLICES, *slices_to_table(m.slices, m.metric or ""))
    if m.groups:
        run.table(run.folder / GROUPS, *slices_to_table(m.groups, m.metric or ""))
    if m.resampled is not None:
        atomic.write_text(run.folder / RESAMPLED, m.resampled.text())
        run.artifact(run.folder / RESAMPLED)
        run.tags({"compress.resampled": RESAMPLED})
    run.note(f"{headline(m.measurement)}\n\n{note}")  # the charts show the first line beside a dot


def build_measurement_tags(m: MeasuredModel) -> dict[str, str]:
    """Which model, on what, and under which conditions: runs that differ in these are not ranked against each other."""
    tags = name_conditions(m.measurement.context)
    if m.subject.ensemble is None:
        tags["compress.fingerprint"] = m.subject.fingerprint
    return tags


def _draw(run: TrackedRun, main: MeasuredModel, measured: Sequence[MeasuredModel], reference: Reference) -> None:
    """The reliability plot of all models, of the main one also after temperature scaling."""
    found = {shown_name(m.subject, reference): m.calibration for m in measured if m.calibration is not None}
    if main.calibration is None:
        return
    file = run.folder / calibration.FILE
    title = f"reliability diagram, {main.measurement.context['dataset']}"
    atomic.write_text(file, calibration.chart(title, found, scaled=shown_name(main.subject, reference)))
    run.artifact(file)


def _plain(context: Any) -> dict[str, str]:
    return {key: context[key] for key in ("precision", "runtime", "threads")}
