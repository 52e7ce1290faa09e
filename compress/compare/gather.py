"""The rows that names, an experiment and folders mean: runs are read from the store, models are measured."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from compress.compare.rows import SIZE, Row, of_run, unique
from compress.contracts import FAKE
from compress.errors import UserError, format_count
from compress.modelfolder.meta import is_cascade
from compress.modelfolder.resolve import is_address
from compress.tracking.reading import ListedRun, Reader, StoredRun, find_listed_run, in_experiment, local_artifacts
from evaluation.quality.pairing import ResampledMetric

if TYPE_CHECKING:
    from compress.measure.measured_model import MeasuredModel

ROLES = ("summary", "comparison")  # of runs that hold no model of their own
MEASURED = ("quality/", FAKE, "size/", "speed/")  # begin of the figures of a model
FROM_SERVER = 40  # files fetched from a server before the table is shown: each is a request


@dataclass(frozen=True)
class ComparedRows:
    """What is compared. measured: name of a row → the model that was measured for it."""

    rows: Sequence[Row]
    notes: Sequence[str] = ()
    measured: Mapping[str, MeasuredModel] = field(default_factory=dict)


def is_model(name: str) -> bool:
    """Whether a name means a model that is to be measured: an address of one, or a folder that holds one."""
    folder = Path(name).expanduser()
    return is_address(name) or is_cascade(folder) or (folder / "config.json").is_file()


def runs_of(reader: Reader, names: Sequence[str], experiment: str | None) -> tuple[list[Row], list[str]]:
    """The runs that are meant, with their figures, and what must be said of them.

    names: of runs, none of models.  With neither names nor experiment: the experiment of the newest run.
    Raises UserError for an unknown or deleted run and an unknown experiment.
    """
    listed, notes = reader.list_runs(), []
    chosen = {run.run_id: run for run in (_find_run(reader, listed, name) for name in names)}
    named = frozenset(chosen)
    if experiment is None and not names:
        newest = next((run for run in listed if not run.deleted), None)
        if newest is None:
            do = "name model folders and --data, or start a run first, e.g. compress distill --recipe distilbert"
            raise UserError("the store has no runs", where=reader.store.shown, do=do)
        experiment = newest.experiment
        notes.append(f"no runs were named: showing experiment {experiment}, which has the newest run")
    if experiment is not None:
        chosen |= {run.run_id: run for run in in_experiment(listed, experiment) if run.run_id not in named}
    found = reader.runs(list(chosen.values()))
    gone = chosen.keys() - {run.run_id for run in found}
    if gone:
        notes.append(f"{format_count(len(gone), 'run')} deleted while the store was read")
    told = [run for run in found if run.run_id in named or holds_model(run)]
    if experiment is not None and len(told) < len(found):
        notes.append(f"not shown: {format_count(len(found) - len(told), 'run')} of {experiment} that measured no model")
    twice = _find_repeated_runs(named, told)
    if twice:
        told = [run for run in told if run.run_id not in twice]
        notes.append(
            f"not shown: {format_count(len(twice), 'run')} of a last stage; the run above has the same figures"
        )
    if not told:
        raise UserError(
            "no run of this experiment measured a model",
            where=f"--experiment {experiment}",
            do="name another experiment",
        )
    shown = unique([run.name for run in told], [run.run_id for run in told])
    figures = read_resampled(reader, told, notes)
    return [of_run(run, name, figures.get(run.run_id)) for run, name in zip(told, shown, strict=True)], notes


def _find_run(reader: Reader, listed: Sequence[ListedRun], name: str) -> ListedRun:
    folder = Path(name).expanduser()
    if folder.is_dir():
        ids = reader.in_folder(str(folder.absolute()))
        hit = next((run for run in listed if run.run_id in ids and not run.deleted), None)
        if hit is not None:
            return hit
        inner = next((folder / n for n in ("student", "model") if (folder / n / "config.json").is_file()), None)
        do = f"name the model, {inner}" if inner else "name a run or a model folder"
        raise UserError("not the folder of a run in the store or of a model", where=str(folder), do=do)
    return find_listed_run(listed, name, reader.store.shown)


def holds_model(run: StoredRun) -> bool:
    """Whether a run has figures of a model."""
    if run.tags.get("compress.role") in ROLES:
        return False
    return bool(_get_model_figures(run))


def _find_repeated_runs(named_ones: Collection[str], runs: Sequence[StoredRun]) -> set[str]:
    """Ids of the runs, none of them named, that tell of the same model as the run above them: last stages of chains."""
    by_id = {run.run_id: run for run in runs}
    found = set()
    for run in runs:
        above = by_id.get(run.parent)
        if above is not None and run.run_id not in named_ones and _get_model_figures(run) == _get_model_figures(above):
            found.add(run.run_id)
    return found


def _get_model_figures(run: StoredRun) -> dict[str, float]:
    return {key: value for key, value in run.metrics.items() if key.startswith(MEASURED)}


def read_resampled(reader: Reader, runs: Sequence[StoredRun], notes: list[str]) -> dict[str, ResampledMetric]:
    """Run id → its quality on resamples, of those that left it; whose files are gone is said."""
    left = [(run, run.tags["compress.resampled"]) for run in runs if "compress.resampled" in run.tags]
    remote = [pair for pair in left if local_artifacts(pair[0].artifacts) is None]
    if len(remote) > FROM_SERVER:
        notes.append(f"more than {FROM_SERVER} runs on a server: their resampled figures are not fetched")
        left = [pair for pair in left if pair not in remote]
    found, lost = {}, []
    for run, name in left:
        text = reader.text(run, name)
        try:
            if text is None:
                lost.append(run)
            else:
                found[run.run_id] = ResampledMetric.parse(text)
        except ValueError:
            lost.append(run)
    if lost:
        where = lost[0].artifacts
        notes.append(
            f"the artifacts of {format_count(len(lost), 'run')} are missing, e.g. of {lost[0].name}: {where}; "
            "if the files were moved, run `compress runs relocate`"
        )
    return found


def models_of(measured: Sequence[MeasuredModel]) -> Iterator[Row]:
    """Rows of models that were measured just now."""
    from compress.modelfolder.cascade import inspect

    names = [m.subject.name for m in measured]
    for m in measured:
        name = m.subject.name if names.count(m.subject.name) == 1 else str(m.subject.folder)
        info = inspect(m.subject.folder)
        facts = {"role": m.subject.role, "folder": str(m.subject.folder), "student.layers": str(info.config.depth)}
        facts["student.hidden"] = str(info.config.hidden)
        facts["fingerprint"] = m.subject.fingerprint
        if info.meta.method:
            facts["method"] = info.meta.method
        yield Row(name, m.measurement.values, m.measurement.context, facts, None, m.resampled)


def one_row_each(rows: Sequence[Row]) -> tuple[list[Row], list[str]]:
    """The first row of each model and data set, and a note of what is left out: a teacher is a run of each of its
    students.

    Models that were measured now were named, so they stay. Runs of earlier versions have no fingerprint; there teachers
    with the same figures are one.
    """
    kept: dict[object, Row] = {}
    for row in rows:
        model = row.fingerprint
        if model is None and row.facts.get("role") == "teacher":
            model = f"{row.values.get(SIZE)} MB, {row.quality}"
        kept.setdefault((model, row.data) if model else id(row), row)
    chosen = {id(row) for row in kept.values()} | {id(row) for row in rows if row.run is None}
    left = len(rows) - len(chosen)
    notes = [f"not shown: {format_count(left, 'more measurement')} of the same models"] if left else []
    return [row for row in rows if id(row) in chosen], notes
