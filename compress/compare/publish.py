"""What the page shows beside the figures of its rows, and the run that keeps page and table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from compress.compare.frontier import ON, OPEN, RankedRow
from compress.compare.gather import ComparedRows
from compress.compare.page import Detail, Picture, page
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import format_count
from compress.report.slice_table import slices_from_json
from compress.storage import atomic
from compress.storage.disk import take_free_folder
from compress.tracking import open_requested_run
from compress.tracking.reading import Reader, StoredRun

if TYPE_CHECKING:
    from compress.measure.measured_model import MeasuredModel

DETAILED = 12  # rows whose pictures, churn and slices are in the page, those on the frontier first
LARGEST_PICTURE = 2_000_000  # characters of an SVG
PICTURES = (
    ("waterfall", "Cost and gain of each stage"),
    ("cka", "Similarity of layers (CKA)"),
    ("sensitivity", "Quantization sensitivity of each module"),
    ("sweep", "Quality versus size in a sweep"),
    ("reliability", "Reliability diagram"),
)
"""Begin of the name of an SVG that a run leaves → what it shows, in the order of the page."""


def page_of(
    judged: Sequence[RankedRow], keys: Sequence[str], notes: Sequence[str], gathered: ComparedRows, reader: Reader
) -> str:
    """The page of these rows, with what their runs left and what was measured now."""
    order = sorted(judged, key=lambda j: (j.place != ON, j.place != OPEN))[:DETAILED]
    below = _group_children(order, reader)
    details, notes = [], list(notes)
    for j in order:
        if j.row.run is not None:
            details.append(_describe_run(j.row.name, j.row.run, below.get(j.row.run.run_id, []), reader))
        else:
            details.append(_describe_measured(j.row.name, gathered.measured[j.row.name]))
    if len(judged) > DETAILED:
        notes.append(
            f"slices, groups, changed predictions and plots are shown for {DETAILED} rows, those on the frontier first"
        )
    return page(_build_title(judged, gathered), judged, keys, notes, details)


def _build_title(judged: Sequence[RankedRow], gathered: ComparedRows) -> str:
    names = {j.row.facts["experiment"] for j in judged if "experiment" in j.row.facts}
    what = f", experiment {next(iter(names))}" if len(names) == 1 and not gathered.measured else ""
    return f"{format_count(len(judged), 'model')} compared{what}"


def _group_children(order: Sequence[RankedRow], reader: Reader) -> Mapping[str, list[StoredRun]]:
    """Run id → the runs below it: stages leave their pictures there."""
    found: dict[str, list[StoredRun]] = {}
    for run in reader.children([j.row.run.run_id for j in order if j.row.run is not None]):
        found.setdefault(run.parent, []).append(run)
    return found


def _describe_measured(name: str, m: MeasuredModel) -> Detail:
    from compress.measure import calibration
    from compress.report.rows import churn_table

    pictures = []
    if m.calibration is not None:
        title = f"reliability diagram, {m.measurement.context['dataset']}"
        pictures.append(Picture("Reliability diagram", calibration.chart(title, {name: m.calibration}, scaled=name)))
    churn = churn_table(m.churn) if m.churn else None
    return Detail(name, pictures, churn, m.slices, m.metric or "", m.groups)


def _describe_run(name: str, run: StoredRun, children: Sequence[StoredRun], reader: Reader) -> Detail:
    pictures: list[tuple[int, Picture]] = []
    for place, one in enumerate([run, *children]):
        for file in reader.files(one):
            kind = next((i for i, (begin, _) in enumerate(PICTURES) if file.startswith(begin)), None)
            if kind is None or not file.endswith(".svg") or (place and PICTURES[kind][0] == "reliability"):
                continue
            text = reader.text(one, file)
            if text is not None and len(text) <= LARGEST_PICTURE:
                pictures.append((kind, Picture(PICTURES[kind][1] + (f", {one.name}" if place else ""), text)))
    pictures.sort(key=lambda pair: pair[0])
    metric, slices = slices_from_json(reader.text(run, "slices.json"))
    grouped_metric, groups = slices_from_json(reader.text(run, "groups.json"))
    churn = _read_churn(reader.text(run, "churn.json"))
    return Detail(name, [p for _, p in pictures], churn, slices, metric or grouped_metric, groups)


def _read_churn(text: str | None) -> tuple[list[str], list[list[str]]] | None:
    """The table that a run left; None for what is none."""
    try:
        said = json.loads(text or "")
        columns, rows = [str(c) for c in said["columns"]], [[str(x) for x in row] for row in said["data"]]
    except (ValueError, KeyError, TypeError):
        return None
    return (columns, rows) if rows and all(len(row) == len(columns) for row in rows) else None


def log(
    options: RunOptions,
    files: Mapping[str, str],
    note: str,
    lines: Sequence[str],
    names: Sequence[str],
    console: Console,
) -> Path:
    """A run of the store with the files as artifacts and the table as its note; returns its folder."""
    folder = take_free_folder(Path("runs") / "comparison")
    with open_requested_run(folder, options, method="compare", role="comparison", warn=console.warn) as run:
        for name, text in files.items():
            atomic.write_text(folder / name, text)
            run.artifact(folder / name)
        run.params({"method": "compare", "rows": len(names), "models": ", ".join(names[:50])})
        run.note(note + "\n\n" + "\n".join(f"- {line}" for line in lines))
    console.result(f"page     {folder / next(iter(files))}")
    for line in run.ui_lines():
        console.result(f"see it   {line}")
    return folder
