"""Measured models as rows for people: the terminal table, the model card and the MLflow note are the same rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal

from compress.contracts import BASELINE, BASELINES, FAKE, RANKINGS, Measurement, name_metric
from compress.errors import list_some, printable
from evaluation.quality.churn import Group
from evaluation.quality.gaps import find_largest_gap, measure_gaps
from evaluation.quality.slices import FEWEST, Slice, find_worse

Row = tuple[str, ...]


Reference = Literal["teacher", "parent", "reference"]
"""What the model that others are compared with is called: teacher where it teaches, parent where others are made of
it, reference where neither is known."""


def comparison(
    names: Sequence[str], measurements: Sequence[Measurement], reference: Reference = "reference"
) -> tuple[Row, list[Row]]:
    """(columns, rows): one column per model, one row per figure; a figure that no model has is left out.

    Models that differ in runtime or precision have a row that names both.
    """
    rows = []
    metric = next((m.context["metric"] for m in measurements if "metric" in m.context), None)
    positive = next((m.context["positive_label"] for m in measurements if "positive_label" in m.context), None)
    shown = [_plainly(m.values) if is_fake(m) else m.values for m in measurements]
    names = [name + (" (simulated)" if is_fake(m) else "") for name, m in zip(names, measurements, strict=True)]
    runtimes = [runtime_name(m.context) for m in measurements]
    if len(set(filter(None, runtimes))) > 1:
        rows.append(("runtime", *runtimes))
    for label, keys, form in figures(metric, reference, positive):
        found = [[values[k] for k in keys if k in values] for values in shown]
        cells = [form(*values) if values else "" for values in found]
        if any(cells):
            rows.append((label, *cells))
    return ("", *names), rows


def is_fake(measurement: Measurement) -> bool:
    """Whether its integers were computed in floats, so that it says nothing of a deployed file."""
    names = measurement.values
    return any(key.startswith(FAKE) for key in names) and not any(key.startswith("quality/") for key in names)


def _plainly(values: Mapping[str, float]) -> dict[str, float]:
    """Figures by the names of the rows that they stand in, the simulated ones too: their column says what they are."""
    told = {}
    for key, value in values.items():
        name = key.removeprefix(FAKE)
        told[name if name == key or name.startswith("vs_teacher/") else f"quality/{name}"] = value
    return told


def runtime_name(context: Mapping[str, str]) -> str:
    """Runtime and precision in short: `torch fp32`, `onnxruntime int8`, `cascade of 2 (onnxruntime, torch) int8, fp32`;
    empty where nothing was timed."""
    if "runtime" not in context:
        return ""
    cascade, colon, models = context["runtime"].partition(": ")
    if colon:
        found = f"{cascade} ({', '.join(dict.fromkeys(map(_shorten_runtime, models.split('; '))))})"
    else:
        found = _shorten_runtime(cascade)
    return f"{found} {context.get('precision', '')}".rstrip()


def _shorten_runtime(computed_by: str) -> str:
    """Without versions and how rows are batched."""
    first, *others = computed_by.split(", ")
    ways = ("packed", "padded", "length buckets")  # padded: in the records of earlier versions
    kinds = [word for word in others if word not in ways and not word.startswith("torch ")]
    return " ".join([first.partition(" ")[0], *kinds])


def conditions(measurement: Measurement, beside: Sequence[Measurement] = ()) -> list[str]:
    """What the figures were measured on, without which a speed must not be compared.

    beside: the other models of the table; where they differ in runtime or precision, a row says so (`comparison`).
    """
    c = measurement.context
    lines = []
    if "dataset" in c:
        rows = f"{c['rows']} rows of {c['dataset']}" if "rows" in c else c["dataset"]
        if any(name.startswith(("quality/", "vs_teacher/", FAKE)) for name in measurement.values):
            lines.append(f"quality on {rows}; intervals are 95 %")
        else:
            alone = ": texts alone are compared with a parent, add --against" if c.get("task") == "embedding" else ""
            lines.append(f"no quality is measured on {rows}{alone}")
    if "device" in c:
        threads = "1 thread" if c.get("threads") == "1" else f"{c.get('threads', '?')} threads"
        if is_fake(measurement):
            lines.append(
                "simulated: the model keeps float weights and rounds them when they are used; no speed is reported, "
                "because no integers are computed"
            )
            return lines
        others = [m.context for m in beside if "runtime" in m.context]
        known = [key for key in ("runtime", "precision") if key in c]
        shared = [c[key] for key in known if all(one.get(key) == c[key] for one in others)]
        if not {"latency_shape", "repeats", "throughput_mix"} <= c.keys():
            return [*lines, ", ".join([f"not timed; computed on {c['device']}", threads, *shared])]
        lines.append(", ".join([f"speed on {c['device']}", threads, *shared]))
        if c.get("cpu_flags") and c.get("device_kind") == "cpu":
            lines.append(f"cpu instructions: {c['cpu_flags']}")
        lines.append(f"latency: {c['latency_shape']}, {c['repeats']} repeats; throughput: {c['throughput_mix']}")
        if "latency_tokens" in c:
            lines.append(f"texts timed, in tokens: {c['latency_tokens']}; how much faster: of the mean latency")
    if "energy_of" in c:
        lines.append(f"energy: of {c['energy_of']}, with idle power and whatever else ran")
    if c.get("contaminated") == "yes":
        least = "" if c.get("threads") == "1" else ", or use --threads 1, which other programs disturb less"
        known = "speed/latency_p50_ms" in measurement.values  # a fit estimates it from the times of the parent
        what = "the latency is an estimate" if known else "no latency"
        lines.append(f"{what}: other programs used the processor while it was timed; measure again{least}")
    if c.get("clock") == "processor time":
        lines.append("other programs used the processor: latency is processor time, what a call takes when alone")
    for what, speed, ratio in _RATIOS:
        if any(_lacks_ratio(m, speed, ratio) for m in (measurement, *beside)):
            where = " where the table shows none" if any(ratio in m.values for m in beside) else ""
            why = "the timings vary too much"
            lines.append(f"how much faster ({what}) is unknown{where}: {why}; measure again on an idle machine")
    return lines


def _lacks_ratio(measurement: Measurement, speed: str, ratio: str) -> bool:
    """Whether a model that was compared with another one and timed has no ratio: its interval was too wide."""
    values = measurement.values
    return "vs_teacher/size_ratio" in values and speed in values and ratio not in values and not is_fake(measurement)


def markdown(columns: Row, rows: Sequence[Row]) -> str:
    """The same table in GitHub Markdown, foreign text escaped."""
    lines = ["| " + " | ".join(map(_cell, columns)) + " |", "|" + "---|" + "--:|" * (len(columns) - 1)]
    return "\n".join(lines + ["| " + " | ".join(map(_cell, row)) + " |" for row in rows])


def headline(measurement: Measurement) -> str:
    """The figures of the trade-off in one line: `accuracy 91.20 % [89.10, 93.00], 23.50 MB, p50 4.10 ms`."""
    values, metric = measurement.values, measurement.context.get("metric", "")
    begin = FAKE if f"{FAKE}{metric}" in values else "quality/"
    parts = []
    if f"{begin}{metric}" in values:
        low, high = (values.get(f"{begin}{metric}{end}") for end in ("_low", "_high"))
        parts.append(f"{title(metric)} {format_figure(metric, values[f'{begin}{metric}'], low, high)}")
        parts += ["simulated"] if begin == FAKE else []
    parts += [f"{values['size/disk_mb']:,.2f} MB"] if "size/disk_mb" in values else []
    parts += [f"p50 {values['speed/latency_p50_ms']:,.2f} ms"] if "speed/latency_p50_ms" in values else []
    return ", ".join(parts)


def description(columns: Row, rows: Sequence[Row], lines: Sequence[str]) -> str:
    """A run's note in Markdown: the table, then what is to be said about it, a list entry each."""
    return markdown(columns, rows) + "\n\n" + "\n".join(f"- {_flat(line)}" for line in lines)


def gain_sentence(student: str, control: str, metric: str, points: tuple[float, float, float]) -> str:
    """Which of two models is better on these rows, by a metric of the first minus that of the second, in points
    (hundredths). Nothing is said of the methods that made them: that needs several seeds."""
    _, low, high = points
    shown = [format_difference(metric, x / 100) for x in points]
    interval = f"{shown[0]} {name_difference(metric)}, 95 % interval {shown[1]} to {shown[2]}"
    if low > 0:
        verdict = f"{student} is better than {control} on these rows"
    elif high < 0:
        verdict = f"{student} is worse than {control} on these rows"
    else:
        verdict = f"no measurable difference between {student} and {control} on these rows"
    return f"{verdict} ({interval}); one run compares two models, a verdict on the method needs three seeds or more"


def churn_table(groups: Sequence[Group], reference: Reference = "reference") -> tuple[Row, list[Row]]:
    """(columns, rows): how many rows of each group changed, for better and for worse."""
    columns = (f"predictions that differ from the {reference}", "rows", "changed", "broken", "fixed")
    shown = [g.name if g.by == "all" else f"{g.by.replace('teacher', reference)}: {g.name}" for g in groups]
    counts = [(g.rows, g.changed, g.broken, g.fixed) for g in groups]
    return columns, [(name, *(f"{n:,}" for n in row)) for name, row in zip(shown, counts, strict=True)]


def churn_sentence(groups: Sequence[Group], reference: Reference = "reference") -> list[str]:
    """One line for all rows; none where nothing was compared."""
    if not groups:
        return []
    g = groups[0]
    return [
        f"predictions differ from the {reference}'s on {g.changed:,} of {g.rows:,} rows: "
        f"{g.broken:,} went from right to wrong, {g.fixed:,} from wrong to right"
    ]


def slices_table(found: Sequence[Slice], metric: str) -> tuple[Row, list[Row]]:
    """(columns, rows): the metric on each slice and, where there is a parent, the paired difference and its verdict."""
    form = _form_of(metric)
    paired = any(s.difference is not None for s in found)
    columns = ("slice", "rows", title(metric))
    columns += ("parent", f"difference{points_header(metric)}", "adjusted p", "") if paired else ()
    rows = []
    for s in found:
        value = s.why if s.value is None else form(s.value.value, s.value.low, s.value.high)
        cells = [f"{s.by}: {s.name}", f"{s.rows:,}", value]
        if paired:
            cells += ["" if s.parent is None else form(s.parent), _format_apart(s, metric)]
            cells += ["" if s.adjusted is None else f"{s.adjusted:.3g}", s.verdict or (s.why if s.value else "")]
        rows.append(tuple(cells))
    return columns, rows


def _format_apart(s: Slice, metric: str) -> str:
    """The difference to the parent; empty where there is none."""
    d = s.difference
    return "" if d is None else format_difference(metric, d.value, d.low, d.high)


def has_figures(found: Sequence[Slice]) -> bool:
    """Whether any of them was measured: a table of none has empty cells only."""
    return any(s.value is not None for s in found)


def explain_no_figures(name: str, found: Sequence[Slice]) -> str:
    """Why there is no table of a model's slices, in one line."""
    why = "; ".join(dict.fromkeys(s.why for s in found)) or "the rows have no groups"
    return f"slices of {name}: none of the groups of rows has a figure: {why}"


def slices_sentence(found: Sequence[Slice], metric: str) -> list[str]:
    """One line: which groups the model fails more than its parent; none where nothing was tested."""
    tested = [s for s in found if s.adjusted is not None]
    if not tested:
        return []
    failing = find_worse(found)
    more = len(found) - len(tested)
    less = f"; {more} more {'was' if more == 1 else 'were'} not tested" if more else ""
    if not failing:
        on = "the only tested group" if len(tested) == 1 else f"any of {len(tested)} groups"
        return [f"slices: the model does not measurably fail more than its parent on {on} of rows{less}"]
    points = " points" * in_percent(metric)
    named = list_some([f"{s.by} {s.name} {_format_apart(s, metric)}{points}" for s in failing], 3, "; ")
    return [f"slices: the model fails more than its parent on {len(failing)} of {len(tested)} groups: {named}{less}"]


def groups_table(found: Sequence[Slice], metric: str) -> tuple[Row, list[Row]]:
    """(columns, rows): the metric on each group of a column, and how far it is behind the best one."""
    form = _form_of(metric)
    columns = ("group", "rows", title(metric), f"behind the best group{points_header(metric)}")
    rows = []
    for s, behind in zip(found, measure_gaps(found), strict=True):
        value = f"too small: {s.why}" if s.value is None else form(s.value.value, s.value.low, s.value.high)
        apart = "" if behind is None else format_difference(metric, behind.value, behind.low, behind.high)
        rows.append((f"{s.by}: {s.name}", f"{s.rows:,}", value, apart))
    return columns, rows


def groups_sentence(found: Sequence[Slice], metric: str) -> list[str]:
    """One line: the largest gap between groups; why there is none where fewer than two have a figure."""
    if not found:
        return []
    gap = find_largest_gap(found)
    if gap is None:
        return [f"groups by {found[0].by}: fewer than two have {FEWEST} rows or more, so no gap is known"]
    small = f"; {gap.small} {'group is' if gap.small == 1 else 'groups are'} too small to compare" if gap.small else ""
    told = "" if gap.is_measurable else ", which is not measurable"
    apart = format_difference(metric, gap.value.value, gap.value.low, gap.value.high)
    shown = f"{apart} {name_difference(metric)}"
    return [f"groups by {found[0].by}: largest gap {shown}, {gap.best} above {gap.worst}{told}{small}"]


GROUPS_NOTE = (
    "groups: intervals of gaps hold for all pairs of groups together (95 %, Bonferroni); groups of fewer than "
    f"{FEWEST} rows are not compared"
)


SLICES_NOTE = (
    "slices: 95 % intervals, paired row by row; p values are corrected for the number of groups (Holm); groups of "
    f"fewer than {FEWEST} rows are not tested"
)


def slices_footnote(found: Sequence[Slice]) -> str:
    """What the figures of a table of slices are: of one model, or beside its parent."""
    if any(s.difference is not None for s in found):
        return SLICES_NOTE
    return f"slices: intervals are 95 %; groups of fewer than {FEWEST} rows have no figure"


def storage_sentence(values: Mapping[str, float]) -> list[str]:
    """One line where a model with shared layers or factorized tables is smaller than its parent but no faster."""
    smaller, faster = values.get("vs_teacher/size_ratio", 1.0), values.get("vs_teacher/speedup", 2.0)
    if smaller < 1.05 or faster >= 1.05:
        return []
    return [
        f"latency did not improve: {smaller:.2f}x smaller on disk, {faster:.2f}x as fast; every layer is still "
        "computed, so sharing reduces storage, not latency"
    ]


def _cell(text: str) -> str:
    return _flat(text).replace("\\", "\\\\").replace("|", "\\|")


def _flat(text: str) -> str:
    """On one line, without tags: labels and names of data are foreign text."""
    return " ".join(text.splitlines()).replace("<", "&lt;")


def _percent(value: float, low: float | None = None, high: float | None = None) -> str:
    if low is None or high is None:
        return f"{100 * value:.2f} %"
    return f"{100 * value:.2f} % [{100 * low:.2f}, {100 * high:.2f}]"


def _kept(value: float, low: float | None = None, high: float | None = None) -> str:
    if low is None or high is None:
        return f"{value:.1f} %"
    return f"{value:.1f} % [{low:.1f}, {high:.1f}]"


def _plain(digits: int, unit: str = ""):
    return lambda value: f"{value:,.{digits}f}{unit}"


def _rate(value: float) -> str:
    """Few rows a second, as of queries with their documents, with decimals."""
    return f"{value:,.{0 if value >= 10 else 2}f} rows/s"


def _decimal(value: float, low: float | None = None, high: float | None = None) -> str:
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def _times(value: float, low: float | None = None, high: float | None = None) -> str:
    return f"{value:.2f}x" if low is None or high is None else f"{value:.2f}x [{low:.2f}, {high:.2f}]"


def _with_interval(key: str) -> tuple[str, str, str]:
    return key, f"{key}_low", f"{key}_high"


def title(metric: str, positive: str | None = None) -> str:
    """What people call a metric. positive: name of the label that the F1 of two labels is of."""
    if metric == "f1_binary" and positive is not None:
        return f"F1 of '{printable(positive, 40)}'"
    return name_metric(metric)


def name_model(name: str, role: str | None, reference: str) -> str:
    """What tables call a model. reference: what the one is called that others are compared with."""
    return reference if role == name == "teacher" else name


def name_agreement(metric: str | None, reference: str) -> str:
    """What people call the share of rows with the answer of the reference: of queries, its first document.

    metric: the main one."""
    return f"same first document as {reference}" if metric in RANKINGS else f"agreement with {reference}"


def format_figure(metric: str, value: float, low: float | None = None, high: float | None = None) -> str:
    """A metric's figure as the tables show it, with the ends of its interval where both are known."""
    return _form_of(metric)(value, low, high)


def _form_of(metric: str) -> Form:
    """Of a figure and its interval; a metric that is not in the list, such as that of a task of one's own, has three
    digits."""
    return METRICS.get(metric, _decimal)


def format_difference(
    metric: str, value: float, low: float | None = None, high: float | None = None, *, sign: str = "+", digits: int = 2
) -> str:
    """The difference of two figures of a metric on the scale of `format_figure`: points (hundredths) of one that is
    told in percent. sign: "" where only a minus is written.  digits: of points."""
    scale, places = (100, digits) if in_percent(metric) else (1, 3)
    shown, *ends = (f"{scale * x:{sign}.{places}f}" for x in (value, low, high) if x is not None)
    return f"{shown} [{', '.join(ends)}]" if len(ends) == 2 else shown


def name_difference(metric: str) -> str:
    """What follows a difference in a sentence: `points of accuracy`, `Spearman`."""
    return f"points of {title(metric)}" if in_percent(metric) else title(metric)


def points_header(metric: str) -> str:
    """What ends the head of a column of differences: that they are points, where they are."""
    return ", points" if in_percent(metric) else ""


def in_percent(metric: str) -> bool:
    """Whether a metric is told in percent: it is a share, from 0 to 1."""
    return METRICS.get(metric) is _percent


def figures(
    metric: str | None, reference: Reference = "reference", positive: str | None = None
) -> list[tuple[str, tuple[str, ...], Form]]:
    """The rows of the table: what they are called, the keys they read, their form. metric: the main one, told first.

    positive: as of `title`."""
    names = sorted(METRICS, key=lambda name: name != metric)
    if metric is not None and metric not in METRICS:
        names.insert(0, metric)
    told = [(title(n, positive), _with_interval(f"quality/{n}"), _form_of(n)) for n in names]
    main = names[0] if metric is None else metric
    name = f"{title(main, positive)} against {reference}{points_header(main)}"
    difference = name, _with_interval(f"vs_teacher/{main}_difference"), partial(format_difference, main)
    agreement = name_agreement(main, reference), _with_interval("vs_teacher/agreement_pct"), _kept
    likeness = [agreement, *((label.format(reference), keys, form) for label, keys, form in _LIKENESS)]
    likeness = [row for row in likeness if row[1][0] != f"vs_teacher/{main}"]  # the metric is not shown twice
    form = _form_of(main)
    rules = [(f"baseline: {told}", (f"{BASELINE}{name}",), form) for name, told in BASELINES.items()]
    return [
        *told,
        *rules,
        *_ROWS,
        *_COSTS,
        ("quality retained", ("vs_teacher/quality_kept_pct",), _kept),
        ("  above chance", ("vs_teacher/quality_kept_above_chance_pct",), _kept),
        difference,
        *likeness,
    ]


Form = Callable[..., str]

METRICS: Mapping[str, Form] = {
    "accuracy": _percent,
    "entity_f1": _percent,
    "exact_match": _percent,
    "f1": _percent,
    "f1_micro": _percent,
    "f1_macro": _percent,
    "f1_binary": _percent,
    "matthews": _decimal,
    "spearman": _decimal,
    "pearson": _decimal,
    "ndcg_at_10": _decimal,
    "mrr_at_10": _decimal,
    "recall_at_1": _percent,
    "recall_at_10": _percent,
    "recall_at_100": _percent,
    "cosine": _decimal,
    "neighbour_overlap_10": _decimal,
    "calibration_error": _percent,
    "calibration_error_scaled": _percent,
}
"""Metric → its form."""

_ROWS = (
    ("training rows with labels", ("rows/labelled",), _plain(0)),
    ("training rows labelled by the teacher only", ("rows/teacher_labelled",), _plain(0)),
    ("  left out: confidence too low", ("rows/removed_unsure",), _plain(0)),
    ("  left out: confidence too high", ("rows/removed_sure",), _plain(0)),
    ("  left out: class has enough rows", ("rows/removed_by_balance",), _plain(0)),
    ("  left out: models agree", ("rows/removed_agreeing",), _plain(0)),
    ("  held out to stop by agreement", ("rows/held_out",), _plain(0)),
)
_COSTS = (
    ("majority-class accuracy", ("quality/majority_baseline",), _percent),
    ("parameters", ("size/params_m",), _plain(2, " M")),
    ("  without embeddings", ("size/params_no_embedding_m",), _plain(2, " M")),
    ("on disk", ("size/disk_mb",), _plain(2, " MB")),
    ("  stored as integers", ("size/integer_mb",), _plain(2, " MB")),
    ("GFLOPs per sequence", ("speed/gflops",), _plain(3)),
    ("latency p50", ("speed/latency_p50_ms",), _plain(2, " ms")),
    ("latency p95", ("speed/latency_p95_ms",), _plain(2, " ms")),
    ("latency mean", ("speed/latency_mean_ms",), _plain(2, " ms")),
    ("  tokenization, included", ("speed/tokenization_ms",), _plain(2, " ms")),
    ("throughput", ("speed/throughput_sps",), _rate),
    ("energy per 1,000 texts", ("energy/joules_per_1000_texts",), _plain(1, " J")),
    ("peak memory above weights", ("memory/peak_mb",), _plain(1, " MB")),
)
_RATIOS = (
    ("latency", "speed/latency_p50_ms", "vs_teacher/speedup"),
    ("throughput", "speed/throughput_sps", "vs_teacher/throughput_ratio"),
)
_LIKENESS = (
    ("correlation with {}", _with_interval("vs_teacher/correlation"), _decimal),
    ("cosine to {}", _with_interval("vs_teacher/cosine"), _decimal),
    ("10 nearest neighbours shared with {}", _with_interval("vs_teacher/neighbour_overlap_10"), _decimal),
    ("rank correlation of scores with {}", _with_interval("vs_teacher/rank_correlation"), _decimal),
    ("rank correlation of similarities with {}", _with_interval("vs_teacher/similarity_rank_correlation"), _decimal),
    ("KL to {}, nats", _with_interval("vs_teacher/kl"), _decimal),
    ("smaller on disk", ("vs_teacher/size_ratio",), _times),
    ("faster (latency)", _with_interval("vs_teacher/speedup"), _times),
    ("faster (throughput)", _with_interval("vs_teacher/throughput_ratio"), _times),
)
