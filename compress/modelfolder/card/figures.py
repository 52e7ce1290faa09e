"""The measured figures of a model card, as tables: of the model beside its teacher, and of groups of rows."""

from __future__ import annotations

from compress.contracts import Measurement
from compress.errors import without_folders
from compress.modelfolder.card.text import escape, format_section
from compress.modelfolder.meta import MeasurementNote
from compress.report.rows import Reference, comparison, conditions


def format_slices(note: MeasurementNote | None) -> str:
    """The section on groups of rows; nothing where none were measured."""
    found = None if note is None else note.slices
    if found is None:
        return ""
    text = format_section("Slices", [escape(line, 1000) for line in found.lines])
    if not found.rows:
        return text
    rule = "|---" * len(found.columns) + "|"
    head, *rows = (f"| {' | '.join(escape(cell) for cell in row)} |" for row in (found.columns, *found.rows))
    return "\n".join([text, "", head, rule, *rows])


def format_measured(
    model: MeasurementNote | None, baseline: MeasurementNote | None, reference: Reference = "teacher"
) -> str:
    """The section with the rows of the table that commands print, and those of the baseline beside them, which is
    called `reference`; nothing where nothing was measured."""
    if model is None:
        return ""
    notes = {"this model": model} | ({reference: baseline} if baseline else {})
    found = [as_measurement(note) for note in notes.values()]
    columns, rows = comparison(list(notes), found, reference)
    table = [f"| {' | '.join(columns)} |", "|---" + "|--:" * len(notes) + "|"]
    for label, *cells in rows:  # a label may hold the name of a class, and a runtime is what the folder says it is
        shown = map(escape, cells) if label == "runtime" else cells
        table.append(f"| {' | '.join([escape(label.strip()), *shown])} |")
    lines = [f"- {escape(line, 1000)}" for line in conditions(found[0], found)]
    return "\n".join(["## Measured", "", *table, *(["", *lines] if lines else [])])


def as_measurement(note: MeasurementNote) -> Measurement:
    """The figures of a note, with the name of the data set in place of its path."""
    told = {k: without_folders(v, parts=2) if k == "dataset" else v for k, v in note.context.items()}
    return Measurement(note.values, told)
