"""`compress compare`: what was asked for, from names to the table, the files and the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from compress.compare import table
from compress.compare.frontier import RankedRow, rank_rows, require_like
from compress.compare.gather import ComparedRows, is_model, models_of, one_row_each, runs_of
from compress.compare.query import QUALITY, check_key, filter_rows, ordered
from compress.compare.rows import name_teachers
from compress.compare.verdict import decide, list_lines
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.report.rows import markdown
from compress.storage import atomic
from compress.tracking import finished
from compress.tracking.reading import Reader
from compress.tracking.store import resolve_store

if TYPE_CHECKING:
    from compress.measure.measured_model import MeasuredModel

PAGE, TABLE, DOCUMENT = "comparison.html", "comparison.csv", "comparison.json"


@dataclass(frozen=True)
class CompareRequest:
    """What a person asked for. names: runs and models.  mixed: rows timed under unlike conditions are shown together.

    csv, html: files to write.  log: also a run of the store with both.  against, split, bootstrap, sliced: of models
    that are measured (`measure.labelled.measure_models`).  slices: shown in the terminal too.
    group_column: of the groups of rows whose gaps are told.  max_gap: largest gap in points that passes.
    length: tokens of the sequences that the models' latency is measured on; None: texts of the data.
    """

    names: Sequence[str] = ()
    experiment: str | None = None
    against: str | None = None
    split: str = "test"
    bootstrap: int = 1000
    sort: str = QUALITY
    filters: Sequence[str] = ()
    columns: Sequence[str] = ()
    mixed: bool = False
    slices: bool = False
    sliced: Sequence[str] | None = None
    markdown: bool = False
    csv: Path | None = None
    html: Path | None = None
    log: bool = False
    group_column: str | None = None
    max_gap: float | None = None
    length: int | None = None


def compare(asked: CompareRequest, options: RunOptions) -> list[RankedRow]:
    """Compare runs and models, tell the table, and write what was asked for; returns its rows in their order.

    Raises UserError as `gathering` and `asking` do, and (refused) when latencies were measured under unlike conditions
    and `mixed` does not allow it.
    """
    if asked.max_gap is not None and asked.group_column is None:
        raise UserError("needs --group-column", where="--max-gap", do="add --group-column COLUMN")
    console = Console(quiet=options.quiet, json=options.json)
    reader = Reader(resolve_store(options.tracking_uri))
    gathered = gather(asked, options, reader, console)
    once, left_out = one_row_each(name_teachers(gathered.rows))
    rows = filter_rows(once, asked.filters)
    if not asked.mixed:
        require_like(rows)
    rows = ordered(rows, asked.sort)
    keys = table.columns(rows, [key if key == table.DIFFERENCE else check_key(key, gathered.rows, "--columns")
                                for key in asked.columns])  # fmt: skip
    judged, notes = rank_rows(rows)
    notes = [*notes, *gathered.notes, *left_out]
    verdict = decide(judged)
    conclusion = list_lines(judged, verdict)
    heads, cells = table.heads(keys, rows), [table.cells(j, keys) for j in judged]
    if asked.markdown:
        console.result(markdown(tuple(heads), [tuple(line) for line in cells]))
        console.result("")
    else:
        narrow = keys if asked.columns else table.fitting(judged, keys, console.width)
        console.table("", table.heads(narrow, rows), [table.cells(j, narrow) for j in judged])
        if len(narrow) < len(keys):
            left = ", ".join(table.heads([key for key in keys if key not in narrow], rows))
            notes.append(f"columns left out of this narrow terminal: {left}; --columns or --html shows them")
    for line in notes:
        console.result(f"- {line}" if asked.markdown else line)
    shown = {row.name: gathered.measured[row.name] for row in rows if row.run is None}
    if shown:
        from compress.measure.labelled import print_groups, print_slices

        if asked.slices or asked.sliced:
            print_slices(console, list(shown.values()))
        print_groups(console, list(shown.values()))
    elif asked.slices or asked.sliced:
        console.result("slices of runs are only on the page: add --html FILE")
    for line in conclusion:
        console.result(line)
    document = table.document(judged, notes, verdict) | {
        "slices": _slices_as_json(shown),
        "groups": _groups_as_json(shown),
    }
    if asked.csv is not None:
        _write_file(console, asked.csv, table.as_csv(judged, keys))
    if asked.html is not None or asked.log:
        from compress.compare.publish import log, page_of

        notes = [*conclusion, *notes]
        text = page_of(judged, keys, notes, gathered, reader)
        if asked.html is not None:
            _write_file(console, asked.html, text)
        if asked.log:
            where = asked.experiment or next((r.facts["experiment"] for r in rows if "experiment" in r.facts), None)
            files = {PAGE: text, TABLE: table.as_csv(judged, keys)}
            note = markdown(tuple(heads), [tuple(line) for line in cells[:50]])
            log(replace(options, experiment=where), files, note, notes, [row.name for row in rows], console)
    for name in dict.fromkeys(row.run.experiment for row in rows if row.run is not None):
        finished.remember(reader.store, name)  # its first page is renewed when the command ends
    console.document(document)
    if asked.max_gap is not None:
        _check_gaps(shown, asked.max_gap)
    return judged


def gather(asked: CompareRequest, options: RunOptions, reader: Reader, console: Console) -> ComparedRows:
    """The rows that are meant. Raises UserError as `gathering` does."""
    models = [name for name in asked.names if is_model(name)]
    others = [name for name in asked.names if not is_model(name)]
    rows, notes = [], []
    if others or asked.experiment is not None or not asked.names:
        rows, notes = runs_of(reader, others, asked.experiment)
    if not models:
        flags = (
            ("--against", asked.against), ("--slice", asked.sliced), ("--group-column", asked.group_column),
            ("--length", asked.length),
        )  # fmt: skip
        for flag, given in flags:
            if given:
                raise UserError("only applies to model folders", where=flag, do="name model folders and --data")
        return ComparedRows(rows, notes)
    from compress.measure.labelled import measure_models

    sliced = list(asked.sliced) if asked.sliced else None
    measured = measure_models(
        models, asked.against, asked.split, asked.bootstrap, options, console, sliced,
        group_column=asked.group_column, as_deployed=True, length=asked.length,
    )  # fmt: skip
    made = list(models_of(measured))
    return ComparedRows([*made, *rows], notes, {row.name: m for row, m in zip(made, measured, strict=True)})


def _slices_as_json(measured: Mapping[str, MeasuredModel]) -> dict[str, list[dict]]:
    return {name: [s.as_json() for s in m.slices] for name, m in measured.items()}


def _groups_as_json(measured: Mapping[str, MeasuredModel]) -> dict[str, dict]:
    return {
        name: {"groups": [s.as_json() for s in m.groups], "gap": None if m.gap is None else m.gap.as_json()}
        for name, m in measured.items()
        if m.groups
    }


def _check_gaps(measured: Mapping[str, MeasuredModel], most: float) -> None:
    """Raise UserError (refused) where a model's groups are farther apart, or how far is not known."""
    missed = []
    for name, m in measured.items():
        if m.gap is None:
            missed.append(f"{name}: fewer than two groups are large enough to compare")
        elif 100 * m.gap.value.value > most:
            missed.append(f"{name}: {100 * m.gap.value.value:.2f} points, {m.gap.best} above {m.gap.worst}")
    if missed:
        raise UserError(
            "the gap between groups is too large or unknown", where=f"--max-gap {most:g}", why="; ".join(missed),
            code=ExitCode.REFUSED,
        )  # fmt: skip


def _write_file(console: Console, path: Path, text: str) -> None:
    """A file in the place of what was there. Raises UserError for a folder."""
    if path.is_dir():
        raise UserError("is a folder", where=str(path), do="name a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic.write_text(path, text)
    console.result(f"wrote {path}")
