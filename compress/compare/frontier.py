"""Which rows are worth a look: the frontier of quality, latency and size, and what keeps rows from being compared."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from compress.compare.rows import CONDITIONS, SERVING, SPEEDUP, Row
from compress.contracts import fixed_length_of
from compress.errors import ExitCode, UserError, format_count, list_some, printable
from compress.report.rows import title
from evaluation.frontier import TOLERANCE, frontier

ON, OPEN, DOMINATED, UNRANKED = "on it", "undecided", "dominated", "not ranked"
"""Places. OPEN: another has figures that are no worse, but the interval of quality does not settle it."""
SHOWN = 6  # names in a note


@dataclass(frozen=True)
class RankedRow:
    """A row with its place. by: the name of a row that dominates it, or might.  paired: the paired interval says so."""

    row: Row
    place: str
    by: str | None = None
    paired: bool = False


def rank_rows(rows: Sequence[Row]) -> tuple[list[RankedRow], list[str]]:
    """Every row with its place, in their order, and what must be said beside the table."""
    paced = _set_one_pace(rows)
    able = [
        (row, replace(c, latency=paced.get(id(row), c.latency))) for row in rows if (c := row.candidate) is not None
    ]
    verdicts = frontier([c for _, c in able])
    found, single = {}, []
    for (row, _), verdict in zip(able, verdicts, strict=True):
        other = verdict.rival if verdict.by is None else verdict.by
        place = DOMINATED if verdict.by is not None else OPEN if other is not None else ON
        found[id(row)] = RankedRow(row, place, None if other is None else able[other][0].name, verdict.paired)
        if verdict.unpaired or (place == DOMINATED and not verdict.paired):
            single.append(row.name)
    judged = [found.get(id(row), RankedRow(row, UNRANKED)) for row in rows]
    lines = _describe_ranking(rows, [row for row, _ in able], single)
    apart = (abs(math.log(paced[id(row)] / row.latency)) for row in rows if id(row) in paced and row.latency)
    if max(apart, default=0) > math.log1p(TOLERANCE):
        lines.append(
            "the machine's speed differed between runs, so models of one teacher are ranked by their speedup over it"
        )
    return judged, lines


def _set_one_pace(rows: Sequence[Row]) -> dict[int, float]:
    """Latencies in ms by id of rows that were timed in turn with one teacher, in the same or in several runs: the
    teacher's latency over the row's speedup, since a machine's pace differs from run to run."""
    timed = [(row, row.latency, row.values.get(SPEEDUP)) for row in rows if row.latency is not None]
    told: dict[tuple[str, tuple[str, ...] | None], list[float]] = {}  # by what was timed beside it
    own: dict[tuple[str | None, tuple[str, ...] | None], list[float]] = {}
    for row, ms, speedup in timed:
        own.setdefault((row.fingerprint, row.conditions), []).append(ms)
        if row.beside is not None and speedup is not None:
            told.setdefault((row.beside, row.conditions), []).append(ms * speedup)
    teachers = {key: statistics.median(own.get(key, found)) for key, found in told.items()}
    return {
        id(row): teachers[row.beside, row.conditions] / speedup
        for row, _, speedup in timed
        if row.beside is not None and row.beside != row.fingerprint and speedup is not None
    }


def in_words(conditions: Sequence[str]) -> str:
    """What a latency was measured under (`Row.conditions`), in words."""
    names = dict(zip(CONDITIONS, conditions, strict=False))
    if "threads" in names:
        names["threads"] += " thread" if names["threads"] == "1" else " threads"
    if SERVING in names:  # of a quantized model too
        names[SERVING] = f"floats in {names[SERVING]}"
    return ", ".join(names.values())


def require_like(rows: Sequence[Row]) -> None:
    """Raise UserError (refused) when latencies were measured on several devices, threads, lengths or texts. Rows of
    different data are not ranked against each other, so theirs may differ."""
    of_data: dict[tuple[str, ...], Counter[tuple[str, ...]]] = {}
    for row in rows:
        if (conditions := row.conditions) is not None:
            of_data.setdefault(row.data, Counter())[conditions] += 1
    for kinds in of_data.values():
        if len(kinds) > 1:
            raise _report_unlike(kinds, rows)


def _report_unlike(kinds: Counter[tuple[str, ...]], rows: Sequence[Row]) -> UserError:
    """The error for these conditions, and how many rows were measured under each."""
    apart = [name for i, name in enumerate(CONDITIONS) if len({kind[i] for kind in kinds}) > 1]
    at = [CONDITIONS.index(name) for name in apart]
    found = "; ".join(f"{format_count(n)} with {', '.join(kind[i] for i in at)}" for kind, n in kinds.most_common(4))
    names = ", ".join({"latency_shape": "length or texts"}.get(name, name) for name in apart)
    first = kinds.most_common(1)[0][0][at[0]]
    key = apart[0]
    again = "measure again in one run"
    lengths = {fixed_length_of(kind[CONDITIONS.index("latency_shape")]) for kind in kinds} - {None}
    if apart == ["latency_shape"] and len(lengths) == 1 and any(row.run is None for row in rows):
        again = f"measure the models with --length {lengths.pop()}"
    return UserError(
        f"latencies were measured under {len(kinds)} different conditions ({names})",
        why=printable(found, 400),
        do=f"choose with --filter '{key}={first}', {again}, or show them with --mixed-conditions",
        code=ExitCode.REFUSED,
    )


def _describe_ranking(rows: Sequence[Row], able: Sequence[Row], single: Sequence[str]) -> list[str]:
    lines = []
    if able:
        lines.append(
            "Pareto: no = the named row is at least as small, as fast (latencies within "
            f"{100 * TOLERANCE:g} %, or of models of one shape, count as equal) and as good; maybe = it is, but the "
            "paired 95 % interval of quality leaves it open; yes = there is no such row"
        )
    if single:
        lines.append(
            f"{format_count(len(single))} compared with some others by unpaired intervals, which are less sensitive, "
            f"because the runs have no common resampled rows: {list_some(single, SHOWN)}"
        )
    data = Counter(row.data for row in rows if row.quality is not None)
    if len(data) > 1:
        told = "; ".join(
            f"{format_count(n)}: {title(kind[0])} on {kind[3] or '?'} rows of {_find_dataset(rows, kind)}"
            for kind, n in data.most_common(4)
        )
        lines.append(f"quality was measured on different data or with different metrics, so it is not ranked: {told}")
    elif data:
        kind = next(iter(data))
        lines.append(f"quality: {title(kind[0])} on {kind[3] or '?'} rows of {_find_dataset(rows, kind)}")
    if _have_several_references(rows):
        lines.append("against reference, faster: each row against the teacher or parent that its own run measured")
    kinds = {c for row in rows if (c := row.conditions) is not None}
    if len(kinds) == 1:
        runtimes = sorted({row.runtime for row in rows if row.runtime is not None})
        lines.append(f"latency: {in_words(next(iter(kinds)))}, {' or '.join(runtimes)}")
    elif kinds:
        lines.append(
            f"latencies were measured under {len(kinds)} different conditions and are not ranked against each other"
        )
    busy = [row.name for row in rows if row.context.get("contaminated") == "yes"]
    if busy:
        lines.append(
            f"{format_count(len(busy))} timed on a busy machine, so without a latency: {list_some(busy, SHOWN)}"
        )
    timed = [row.name for row in rows if row.context.get("clock") == "processor time"]
    if timed:
        lines.append(
            f"{format_count(len(timed))} timed on a busy machine, by processor time, what a call takes when alone: "
            f"{list_some(timed, SHOWN)}"
        )
    simulated = [row.name for row in rows if row.simulated]
    if simulated:
        lines.append(
            f"simulated quantization, so latency is unknown and the row is not ranked: {list_some(simulated, SHOWN)}"
        )
    poor = [f"{row.name} ({', '.join(row.missing)})" for row in rows if row.missing and not row.simulated]
    if poor:
        lines.append(f"{format_count(len(poor))} with missing values, shown as —: {list_some(poor, SHOWN)}")
    return lines


def _have_several_references(rows: Sequence[Row]) -> bool:
    """Whether the rows may have been compared, each in its run, with different models."""
    compared = [(row, row.run) for row in rows if row.run is not None and any(map(_is_comparison, row.values))]
    runs, beside = {run.parent or run.run_id for _, run in compared}, {row.beside for row, _ in compared}
    return len(runs) > 1 and (None in beside or len(beside) > 1)


def _is_comparison(name: str) -> bool:
    return name == SPEEDUP or (name.startswith("vs_teacher/") and name.endswith("_difference"))


def _find_dataset(rows: Sequence[Row], kind: tuple[str, ...]) -> str:
    return next(
        (row.context["dataset"] for row in rows if row.data == kind and "dataset" in row.context), "unknown data"
    )
