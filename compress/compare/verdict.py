"""Which model to ship, in one sentence, and why not the others."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from compress.compare.frontier import RankedRow
from compress.compare.rows import LATENCY, MEAN, SIZE, SPEEDUP, Row
from compress.report.rows import format_difference, name_difference
from compress.report.weakness import describe_unbeaten
from evaluation.frontier import TOLERANCE
from evaluation.quality.intervals import Interval

SHOWN = 5  # models whose reasons are given
WITHOUT_LABELS = ("cosine", "neighbour_overlap_10")
"""Metrics that say how similar vectors are to the parent's. Every change lowers them, and the parent has none, so they
do not tell what is lost."""
KEEP = "no other model is smaller or faster without a measurable loss"
KEEP_BECAUSE_OF_TRADES = (
    "no other model without a measurable loss saves more than it costs, in size and latency together"
)
NO_VERDICT = "none without labels: quality is how similar the vectors are to the parent's; use scored pairs or a search"


@dataclass(frozen=True)
class Verdict:
    """ship: the model; the reference itself where nothing smaller or faster is without a measurable loss.  against:
    the reference.  reasons: model → why not."""

    ship: str
    against: str
    sentence: str
    reasons: dict[str, str]

    def lines(self) -> list[str]:
        """As printed: the sentence, then the reasons."""
        shown = [f"{name}: {why}" for name, why in list(self.reasons.items())[:SHOWN]]
        left = len(self.reasons) - len(shown)
        more = [f"and {left:,} more"] if left else []
        return [f"verdict: {self.sentence}", *(f"  not {line}" for line in shown), *(f"  {line}" for line in more)]

    def as_json(self) -> dict[str, Any]:
        """For --json."""
        return {"ship": self.ship, "against": self.against, "sentence": self.sentence, "why_not": self.reasons}


def decide(judged: Sequence[RankedRow]) -> Verdict | None:
    """The smallest and fastest model without a measurable loss of quality; None with fewer than two that compare, and
    where `lacks_labels`.

    The reference is the teacher, else the model of the highest quality. A loss is measurable where the interval of the
    difference to the reference lies below zero. Of those without one, the model with the largest product of how many
    times smaller and how many times faster it is wins, or the best of those that have its shape; an unknown speed
    counts as equal. A model that is not above its baseline does not win, unless the reference is not either.
    """
    rows = _select_comparable([j.row for j in judged])
    if len(rows) < 2 or lacks_labels(judged):
        return None
    reference = max(rows, key=lambda row: (row.facts.get("role") == "teacher", row.quality or (0.0,), row.values[SIZE]))
    others = [row for row in rows if row is not reference]
    losses = {id(row): _subtract_quality(row, reference) for row in others}
    all_weak = _describe_weakness(reference)
    weak = {id(row): None if all_weak else _describe_weakness(row) for row in others}
    good = [row for row in others if losses[id(row)].high >= 0 and weak[id(row)] is None]
    able = [row for row in good if _score_savings(row, reference) > math.log1p(TOLERANCE)]
    best = max(able, key=lambda row: _score_savings(row, reference), default=reference)
    alike = [row for row in able if _have_same_shape(row, best)]
    best = max(alike, key=lambda row: (row.quality or (0.0,), row.facts.get("role") == "student"), default=best)
    reasons = {
        row.name: weak.get(id(row))
        or _explain_rejection(row, best, None if row is reference else losses[id(row)], row is reference)
        for row in sorted(rows, key=lambda row: -_score_savings(row, reference))
        if row is not best
    }
    outside = [j.row for j in judged if j.row.name not in {row.name for row in rows}]
    reasons |= {row.name: _describe_missing(row, reference) for row in outside}
    if best is reference:
        trades = any(_saves_something(row, reference) for row in good)
        sentence = f"keep {best.name}: " + (KEEP_BECAUSE_OF_TRADES if trades else KEEP)
    else:
        costs, loss = ", ".join(_describe_costs(best, reference)), _describe_difference(best, losses[id(best)])
        sentence = f"ship {best.name}: {costs}, {loss}, against {reference.name}"
    if all_weak is not None:
        sentence += f"; but {reference.name} is {all_weak}"
    return Verdict(best.name, reference.name, sentence, reasons)


def list_lines(judged: Sequence[RankedRow], verdict: Verdict | None) -> list[str]:
    """What `decide` found, as printed."""
    if verdict is not None:
        return verdict.lines()
    return [f"verdict: {NO_VERDICT}"] if lacks_labels(judged) else []


def lacks_labels(judged: Sequence[RankedRow]) -> bool:
    """Whether quality is the similarity of vectors to a parent's (WITHOUT_LABELS) where most rows were measured."""
    rows = _select_comparable([j.row for j in judged])
    return bool(rows) and rows[0].metric in WITHOUT_LABELS


def _select_comparable(rows: Sequence[Row]) -> list[Row]:
    """Those with quality and size, on the data that most are measured on."""
    able = [row for row in rows if row.candidate is not None and not row.simulated]
    if not able:
        return []
    data = Counter(row.data for row in able).most_common(1)[0][0]
    return [row for row in able if row.data == data]


def _describe_weakness(row: Row) -> str | None:
    """That a model is not above what needs no encoder, on the rows that it was measured on; None where it is."""
    return describe_unbeaten(row.metric or "", (row.quality or (math.nan,))[0], row.values)


def _subtract_quality(row: Row, reference: Row) -> Interval:
    """Quality minus the reference's, paired where both have figures of the same resamples."""
    one, other = row.candidate, reference.candidate
    assert one is not None
    assert other is not None
    if one.figures is not None and other.figures is not None and one.figures.key == other.figures.key:
        return one.figures.minus(other.figures)
    return Interval(one.quality - other.quality, one.low - other.high, one.high - other.low, 0, 0)


def _score_savings(row: Row, reference: Row) -> float:
    """Log of times smaller and times faster."""
    return math.log(reference.values[SIZE] / row.values[SIZE]) + math.log(_compute_speedup(row, reference) or 1.0)


def _saves_something(row: Row, reference: Row) -> bool:
    """Whether a row is measurably smaller or faster, whatever the other of both costs."""
    ratios = (reference.values[SIZE] / row.values[SIZE], _compute_speedup(row, reference) or 1.0)
    return max(ratios) > 1 + TOLERANCE


def _compute_speedup(row: Row, reference: Row) -> float | None:
    """By the mean latency, as everywhere; 1 of models of one shape. None where a latency is unknown, or the two were
    measured under other conditions."""
    if row.conditions is None or row.conditions != reference.conditions:
        return None
    if _have_same_shape(row, reference):
        return 1.0
    if (paired := _compare_speedups(row, reference)) is not None:
        return paired
    key = MEAN if MEAN in row.values and MEAN in reference.values else LATENCY
    return reference.values[key] / row.values[key]


def _have_same_shape(row: Row, other: Row) -> bool:
    return row.shape is not None and row.shape == other.shape


def _compare_speedups(row: Row, other: Row) -> float | None:
    """By how much each is faster than one teacher that both were timed in turn with: a machine's pace differs from run
    to run. None where there is no such teacher."""
    if _is_timed_beside(row, other) and SPEEDUP in row.values:
        return row.values[SPEEDUP]
    if _is_timed_beside(other, row) and SPEEDUP in other.values:
        return 1 / other.values[SPEEDUP]
    if row.beside is None or row.beside != other.beside or not all(SPEEDUP in one.values for one in (row, other)):
        return None
    return row.values[SPEEDUP] / other.values[SPEEDUP]


def _is_timed_beside(row: Row, reference: Row) -> bool:
    """Whether the two were timed in turn, in one run; or the row and the same model as the reference."""
    if reference.facts.get("role") != "teacher":
        return False
    if row.beside is not None and reference.fingerprint is not None:
        return row.beside == reference.fingerprint
    if row.run is None or reference.run is None:  # measured now, or not
        return row.run is reference.run
    return reference.run.parent == row.run.run_id


def _describe_costs(row: Row, reference: Row) -> list[str]:
    smaller, faster = reference.values[SIZE] / row.values[SIZE], _compute_speedup(row, reference)
    parts = [_format_ratio(smaller, "smaller", "larger")]
    if faster is None:
        return [*parts, "speed unknown"]
    low, high = (row.values.get(f"{SPEEDUP}_{end}") for end in ("low", "high"))
    interval = ""
    if faster != 1 and _is_timed_beside(row, reference) and low is not None and high is not None:
        if faster < 1:  # the factor is of how much slower it is, so the ends are too
            low, high = 1 / high, 1 / low
        interval = f" [{low:.1f}, {high:.1f}]"
    return [*parts, _format_ratio(faster, "faster", "slower") + interval]


def _format_ratio(ratio: float, more: str, less: str) -> str:
    """`2.1x smaller`, `1.4x larger`, `as …` where it is neither."""
    if abs(math.log(ratio)) <= math.log1p(TOLERANCE):
        return {"smaller": "same size", "faster": "same speed"}[more]
    return f"{ratio:.1f}x {more}" if ratio > 1 else f"{1 / ratio:.1f}x {less}"


def _describe_difference(row: Row, found: Interval) -> str:
    metric = row.metric or ""
    text = f"{format_difference(metric, found.value, found.low, found.high, digits=1)} {name_difference(metric)}"
    if found.high < 0:
        return f"a measurable loss ({text})"
    return f"a measurable gain ({text})" if found.low > 0 else f"no measurable loss ({text})"


def _explain_rejection(row: Row, best: Row, loss: Interval | None, is_reference: bool) -> str:
    if loss is not None and loss.high < 0:
        return _describe_difference(row, loss)
    parts = _describe_costs(row, best)
    if is_reference:
        return f"the reference, {' and '.join(parts)}"
    return f"{' and '.join(parts)}" + (
        "" if loss is None or loss.low <= 0 else f", but {_describe_difference(row, loss)}"
    )


def _describe_missing(row: Row, reference: Row) -> str:
    if row.simulated:
        return "simulated quantization; export or quantize it to measure what is deployed"
    if row.quality is None or row.candidate is None:
        return f"not measured ({', '.join(row.missing) or 'no interval'})"
    return "measured on other data" if row.data != reference.data else "not measured"
