"""The first page of an experiment in MLflow: the models that could be shipped, one row each, and which one to ship.

It is tags of the runs (which row is shown, its place on the Pareto frontier), the saved views, and the verdict in the
experiment's description. Each run, `compress compare` and `compress ui` renew it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from compress.compare import table
from compress.compare.frontier import RankedRow, rank_rows
from compress.compare.gather import holds_model, read_resampled
from compress.compare.query import PARETO as PARETO_COLUMN
from compress.compare.query import QUALITY
from compress.compare.rows import LATENCY, MISSING, SIZE, Row, name_teachers, of_run, unique
from compress.compare.verdict import NO_VERDICT, Verdict, decide, lacks_labels
from compress.report.rows import markdown, title
from compress.tracking import finished
from compress.tracking.firstpage import END, HEADING, write_page
from compress.tracking.reading import Reader, StoredRun
from compress.tracking.registering import FLAVOUR_TAG, PROMOTED_TAG
from compress.tracking.store import Store, short
from compress.tracking.view import DEPLOYABLE, NAME, NO, PARETO, STAGE, YES, SavedView, page_state, view_key
from evaluation.quality.pairing import ResampledMetric

log = logging.getLogger(__name__)

SHOWN = 20  # rows of a table of the description
DATA_SETS = 4  # whose tables fit into it


@dataclass(frozen=True)
class FirstPage:
    """tags: run id → its tags.  verdict: Markdown.  views: one for each metric and data set, that of the newest model
    last."""

    tags: Mapping[str, Mapping[str, str]]
    verdict: str
    views: Sequence[SavedView] = ()


def renew_finished() -> None:
    """Renew the pages of the experiments in which this process finished a run."""
    for store, experiment in finished.take():
        renew(store, experiment)


def renew(store: Store, experiment: str) -> None:
    """Write the first page as the runs of the store are now. Never raises: a failure is only logged."""
    try:
        reader = Reader(store)
        listed = [run for run in reader.list_runs() if run.experiment == experiment and not run.deleted]
        runs = reader.runs(listed)
        if runs:
            page = build(runs, lambda shown: read_resampled(reader, shown, []))
            write_page(reader.client, experiment, runs, page.tags, page.views, page.verdict)
    except Exception as error:
        log.info("the first page of %s was not renewed: %s", experiment, short(error))


def build(runs: Sequence[StoredRun], read: Callable[[Sequence[StoredRun]], Mapping[str, ResampledMetric]]) -> FirstPage:
    """The page of these runs of one experiment, the newest first. read: runs → run id → its quality on resamples; asked
    of the runs that are shown alone, since it reads a file for each."""
    found = {row.facts["run"]: row for row in name_teachers([of_run(run, run.name, None) for run in runs])}
    models, references = _choose_runs(runs, found)
    shown = [*models, *references]
    resampled = read(shown)
    names = unique([*(run.name for run in models), *map(_name_parent, references)], [run.run_id for run in shown])
    rows = [
        replace(found[run.run_id], name=name, resampled=resampled.get(run.run_id))
        for run, name in zip(shown, names, strict=True)
    ]
    judged, notes = rank_rows(rows)
    places = {j.row.facts["run"]: table.cell(j, PARETO_COLUMN) for j in judged}
    shipped = {run.run_id for run in models}
    tags = {}
    for run in runs:
        if run.run_id in shipped:
            tags[run.run_id] = {DEPLOYABLE: YES, PARETO: places[run.run_id]}
        else:
            belongs = run.tags.get("compress.role") == "stage" and run.parent in shipped
            tags[run.run_id] = {DEPLOYABLE: STAGE if belongs else NO, PARETO: MISSING}
    own = rows[: len(models)]
    newest = {data: place for place, data in reversed(list(enumerate(found[run.run_id].data for run in runs)))}
    newest_first = sorted(judged, key=lambda j: newest[j.row.data])
    return FirstPage(tags, describe(newest_first, notes), list(_build_views(models, own, found.values())))


def describe(judged: Sequence[RankedRow], notes: Sequence[str]) -> str:
    """A verdict with its table for each data set, that of the first model before the others, as Markdown between
    HEADING and END."""
    of_data: dict[tuple[str, ...], list[RankedRow]] = {}
    for one in judged:
        of_data.setdefault(one.row.data, []).append(one)
    parts = []
    for group in list(of_data.values())[:DATA_SETS] or [[]]:
        said, verdict = _conclude(group)
        brief, _, more = said.partition(" (")  # a closed description shows one line, which must fit a small screen
        on = f" on {group[0].row.dataset or 'no data'}" if len(of_data) > 1 else ""
        parts += [f"{'####' if parts else HEADING + ':'} {brief}{on}", *([f"**{said}**"] if more else [])]
        order = [one.row.name for one in group] if verdict is None else [verdict.ship, *verdict.reasons]
        if order:
            parts.append(_build_table(group, order[:SHOWN], verdict))
        if len(order) > SHOWN:
            notes = [f"{len(order) - SHOWN:,} more models{on} are in the table of runs", *notes]
    if len(of_data) > DATA_SETS:
        notes = [f"models on {len(of_data) - DATA_SETS:,} more data sets are in the table of runs", *notes]
    if judged:
        together = "`compress compare MODEL MODEL --data DATA` times them together"
        notes = [*notes, f"each run timed its own models; {together}"]
    parts += ["\n".join(f"- {note}" for note in notes)] if notes else []
    return "\n\n".join([*parts, END])


def _conclude(judged: Sequence[RankedRow]) -> tuple[str, Verdict | None]:
    """The verdict on models of one data set, in a sentence; None where there is none."""
    verdict = decide(judged)
    if verdict is not None:
        return verdict.sentence, verdict
    if lacks_labels(judged):
        return NO_VERDICT, None
    if not judged:
        return "no run of this experiment has measured a model that could be shipped", None
    return "nothing to compare yet; a verdict needs two models that are measured on the same data", None


def _build_table(judged: Sequence[RankedRow], order: Sequence[str], verdict: Verdict | None) -> str:
    """A line for each of the named models, with what the verdict says of it."""
    by_name = {j.row.name: j for j in judged}
    keys = (QUALITY, SIZE, LATENCY, PARETO_COLUMN)
    lines = []
    for name in order:
        why = MISSING if verdict is None else verdict.reasons.get(name, "ship" if name != verdict.against else "keep")
        lines.append((name, *table.cells(by_name[name], keys), why))
    return markdown(("model", *table.heads(keys, [j.row for j in judged]), "verdict"), lines)


def _choose_runs(runs: Sequence[StoredRun], rows: Mapping[str, Row]) -> tuple[list[StoredRun], list[StoredRun]]:
    """(runs of deployable models, one each; runs that measured a parent which no run made, one each). rows: run id →
    its row."""
    by_id = {run.run_id: run for run in runs}
    able = [(run, rows[run.run_id]) for run in runs if _is_deployable(run, rows[run.run_id])]
    own: dict[object, StoredRun] = {}
    measurements = set()
    for run, row in sorted(able, key=lambda pair: _rank_preference(*pair)):
        figures = _get_figures(row)
        if _stands_alone(run, by_id) and (run.tags.get(PROMOTED_TAG) is None or figures not in measurements):
            own.setdefault(_identify_model(run, row), run)
            measurements.add(figures)
    chosen = {run.run_id for run in own.values()}
    others: dict[object, StoredRun] = {}
    for run, row in able:
        identity, parent = _identify_model(run, row), run.tags.get("compress.role") == "teacher"
        if parent and not _stands_alone(run, by_id) and identity not in own:
            others.setdefault(identity, run)
    return [run for run in runs if run.run_id in chosen], list(others.values())


def _is_deployable(run: StoredRun, row: Row) -> bool:
    """Whether it measured a model as it would be deployed: its quality, and not that of a simulation, and its size."""
    made = run.tags.get("compress.role") in ("student", "teacher") and holds_model(run)
    return made and row.quality is not None and not row.simulated and SIZE in row.values


def _stands_alone(run: StoredRun, by_id: Mapping[str, StoredRun]) -> bool:
    """Whether its model is what a person ran a command for, not a part of another run."""
    above = by_id.get(run.parent)
    return not run.parent or (above is not None and above.tags.get("compress.role") == "summary")


def _rank_preference(run: StoredRun, row: Row) -> tuple[bool, bool, int]:
    """Of several runs of one model, the smallest is shown: one that made it, and timed it, the newest."""
    copied = PROMOTED_TAG in run.tags or FLAVOUR_TAG in run.tags  # FLAVOUR_TAG: by earlier versions
    return copied, LATENCY not in row.values, -run.started_ms


def _identify_model(run: StoredRun, row: Row) -> object:
    """The same for two runs that measured the same model on the same data."""
    model = run.tags.get("compress.fingerprint")
    return (model, row.data) if model else run.run_id


def _get_figures(row: Row) -> object:
    """The same for a run that measured a model and one that copied the figures from its folder."""
    return row.quality, row.values[SIZE], row.values.get(LATENCY)


def _name_parent(run: StoredRun) -> str:
    """What the parent is called that a run measured."""
    return run.tags.get("compress.model") or run.name


def _build_views(models: Sequence[StoredRun], rows: Sequence[Row], measured: Iterable[Row]) -> Iterator[SavedView]:
    """The views, the newest last; models and their rows, the newest first. Figures of several metrics or data sets in
    one chart would have nothing to say. measured: the rows of all runs, the newest first: the data set that a metric
    was first measured on keeps the key of the metric alone, so that a view stays that of its data set."""
    groups = list(dict.fromkeys(_get_group(row) for row in rows if row.metric is not None))
    metrics = [metric for metric, _ in groups]
    oldest = dict(group for group in map(_get_group, measured) if group in groups)
    nested = not any(run.parent for run in models)
    search = f"tags.{DEPLOYABLE} != '{NO}'" if nested else f"tags.{DEPLOYABLE} = '{YES}'"
    for metric, data in reversed(groups):
        known = set.intersection(*(set(row.values) for row in rows if _get_group(row) == (metric, data)))
        clauses, names = [search], []
        if len(set(metrics)) > 1:
            clauses.append(f"tags.`measured.metric` = '{metric}'")
            names.append(title(metric))
        if metrics.count(metric) > 1:
            quote = '"' if "'" in data else "'"
            clauses.append(f"tags.`measured.dataset` = {quote}{data}{quote}")
            names.append(data)
        key = view_key(metric, None if oldest[metric] == data else data)
        name = f"{NAME}: {', '.join(names)}" if names else NAME
        state = page_state(f"quality/{metric}", search=" AND ".join(clauses), known=known, nested=nested)
        yield SavedView(key, name, state)


def _get_group(row: Row) -> tuple[str, str]:
    """What models share that one view shows: the metric and the data set."""
    return row.metric or "", row.context.get("dataset", "")
