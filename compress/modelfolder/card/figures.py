"""The measured figures of a model card, as tables: of the model beside its teacher, and of groups of rows."""

from __future__ import annotations

from collections.abc import Sequence

from compress.contracts import FAKE
from compress.errors import without_folders
from compress.modelfolder.card.text import escape, format_section
from compress.modelfolder.meta import MeasurementNote

# Metric → heading and number format of the measured table; other metrics follow under their own names.
_FIGURES: Sequence[tuple[str, str, str]] = (
    ("size/params_m", "parameters, M", ".2f"),
    ("size/params_no_embedding_m", "without embeddings, M", ".2f"),
    ("size/disk_mb", "on disk, MB", ".2f"),
    ("speed/gflops", "GFLOPs per sequence", ".3f"),
    ("speed/latency_p50_ms", "latency p50, ms", ".2f"),
    ("speed/latency_p95_ms", "latency p95, ms", ".2f"),
    ("speed/throughput_sps", "rows per second", ".1f"),
    ("memory/peak_mb", "peak memory, MB", ".0f"),
)


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


def format_measured(model: MeasurementNote | None, baseline: MeasurementNote | None, reference: str = "teacher") -> str:
    """The section with all figures, and those of the baseline beside them, which is called `reference`; nothing where
    nothing was measured."""
    if model is None:
        return ""
    names = ["", "this model", reference, "ratio"] if baseline else ["", "this model"]
    rows = [f"| {' | '.join(names)} |", "|---" + "|--:" * (len(names) - 1) + "|"]
    quality = sorted(n for n in model.values if n.startswith(("quality/", FAKE)) and not n.endswith(("_low", "_high")))
    for metric, title, form in [*((n, _title(n), ".4f") for n in quality), *_FIGURES]:
        if metric in model.values:
            rows.append(_row(metric, title, form, model, baseline))
    rest = sorted(n for n in model.values if n.startswith("vs_teacher/") and not n.endswith(("_low", "_high")))
    rows += [f"| {escape(n)} | {_cell(n, _form(n), model)}{' | | ' if baseline else ' '}|" for n in rest]
    told = {k: without_folders(v, parts=2) if k == "dataset" else v for k, v in model.context.items()}
    context = ", ".join(f"{escape(k)}: {escape(v)}" for k, v in sorted(told.items()))
    return "\n".join(["## Measured", "", *rows, *(["", f"Measured with {context}."] if context else [])])


def _form(metric: str) -> str:
    """Number format of a figure against the teacher."""
    return ".4f" if metric.endswith("_difference") else ".2g" if metric.endswith("p_value") else ".2f"


def _title(metric: str) -> str:
    return escape(metric.partition("/")[2]) + (" (simulated)" if metric.startswith(FAKE) else "")


def _row(metric: str, title: str, form: str, model: MeasurementNote, teacher: MeasurementNote | None) -> str:
    cells = [title, _cell(metric, form, model)]
    if teacher:
        theirs, ours = teacher.values.get(metric), model.values[metric]
        cells += [_cell(metric, form, teacher), f"{ours / theirs:.3f}" if theirs else ""]
    return f"| {' | '.join(cells)} |"


def _cell(metric: str, form: str, note: MeasurementNote) -> str:
    """The figure, with its interval where one was measured."""
    value = note.values.get(metric)
    if value is None:
        return ""
    low, high = note.values.get(f"{metric}_low"), note.values.get(f"{metric}_high")
    interval = "" if low is None or high is None else f" ({low:{form}} to {high:{form}})"
    return f"{value:{form}}{interval}"
