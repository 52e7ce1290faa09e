"""Why distillation gained or not, by what was measured on this run, and what to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compress.contracts import CONTROL
from compress.data.task import ScoredAnswers
from compress.measure.measured_model import MeasuredModel
from compress.measure.subject import kind_of
from compress.report.rows import format_difference, format_figure, gain_sentence, name_difference
from compress.stages.shared.stage import LABELLED, TAUGHT, TEACHER_CONFIDENT, TEACHER_NOISE, TEACHER_RIGHT

RESAMPLES = 1000
CHECK = "gain"
"""The name of the finding."""
REMOVED = "removed_"
"""Begins the names of counts of rows that a filter left out."""
SURE = 0.8
"""Share of rows with a teacher probability above 95 % from which on its answers are taken for hard labels."""
NOISY = 0.03
"""Share of labels that the teacher contradicts with a probability above 95 % from which on they are called noisy."""


@dataclass(frozen=True)
class Gain:
    """The main metric of the student minus that of its best control, on the same rows.

    student, control: the scores of both.  points: the difference with its 95 % interval (value, low, high), in points.
    control_name: what a sentence calls the control.
    """

    metric: str
    student: ScoredAnswers
    control: ScoredAnswers
    points: tuple[float, float, float]
    control_name: str

    @property
    def sentence(self) -> str:
        """Whether the teacher helped."""
        return gain_sentence("the student", self.control_name, self.metric, self.points)


def measure_gain(measured: Sequence[MeasuredModel]) -> Gain | None:
    """The gain over the best control, from resampled rows; None where no control was trained, or a metric is undefined.

    Costs RESAMPLES resamples of both models' answers, so a run computes it once.
    """
    student = next((m for m in measured if m.subject.role == "student"), None)
    control = best_control(measured)
    if student is None or control is None or student.scored is None or control.scored is None:
        return None
    metric = student.metric
    if metric is None or metric not in student.scored.metrics or metric not in control.scored.metrics:
        return None
    found = student.scored.difference(control.scored, metric, resamples=RESAMPLES)
    name = "its control on hard labels"
    if sum(kind_of(m.subject.role) == CONTROL for m in measured) > 1:
        name = f"its best control on hard labels ({control.subject.name})"
    points = (100 * found.value, 100 * found.low, 100 * found.high)
    return Gain(metric, student.scored, control.scored, points, name)


def best_control(measured: Sequence[MeasuredModel]) -> MeasuredModel | None:
    """The control with the highest main metric; None where none was trained, or it is undefined for all of them."""
    found = [m for m in measured if kind_of(m.subject.role) == CONTROL and m.scored is not None]
    found = [m for m in found if m.scored and m.metric in m.scored.metrics]
    return max(found, key=lambda m: m.scored.value(m.metric) if m.scored and m.metric else 0.0, default=None)


@dataclass(frozen=True)
class GainFacts:
    """What a run measured. gain: of the student over its control, with its 95 % interval, in points.  teacher, control,
    student: the main metric, of which the teacher's is None where columns teach.  rows: training rows: LABELLED,
    TAUGHT, and figures of the teacher on the labelled ones, where they are known.  seen: rows of all steps.  test: rows
    that were measured on.  metric: its name."""

    gain: tuple[float, float, float]
    teacher: float | None
    control: float
    rows: Mapping[str, float]
    seen: int
    test: int
    metric: str


def explain_gain(facts: GainFacts) -> tuple[str, str]:
    """(the gain and its reason, what to change)."""
    _, low, high = facts.gain
    shown, *ends = (format_difference(facts.metric, x / 100) for x in facts.gain)
    interval = f"{shown} {name_difference(facts.metric)} over the control [{', '.join(ends)}]"
    if low > 0:
        return f"the student is better on these rows, {interval}: {_describe_gain(facts)}", _improve(facts)
    what = "the student is worse on these rows," if high < 0 else "no measurable difference on these rows,"
    why, do = _find_reason(facts)
    return f"{what} {interval}; {why}", do


def _describe_gain(facts: GainFacts) -> str:
    taught = int(facts.rows.get(TAUGHT, 0))
    if taught:
        labelled = int(facts.rows.get(LABELLED, 0))
        said = f"the student also learned from {taught:,} rows that only the teacher labels ({labelled:,} have labels)"
        lost = int(sum(count for name, count in facts.rows.items() if name.startswith(REMOVED)))
        return f"{said}; the row filter left out {lost:,} others" if lost else said
    sure = facts.rows.get(TEACHER_CONFIDENT)
    if sure is not None and sure < SURE:
        return f"the teacher's probabilities say more than the labels; {_sureness(facts)}"
    return "the student learned from the teacher's outputs on the labelled rows"


def _improve(facts: GainFacts) -> str:
    there = _there(facts)
    if facts.seen < there:
        return f"train longer for more: {facts.seen:,} of {there:,} rows were seen"
    if not facts.rows.get(TAUGHT):
        return "text without labels usually adds more: --unlabelled PATH or --pool CORPUS"
    return "more text without labels may add more"


def _find_reason(facts: GainFacts) -> tuple[str, str]:
    """The first reason that holds, the most certain one first."""
    there, taught = _there(facts), facts.rows.get(TAUGHT, 0)
    if facts.teacher is not None and facts.teacher <= facts.control:
        theirs, ours = (format_figure(facts.metric, value) for value in (facts.teacher, facts.control))
        return (
            f"the teacher is not better than the control: {theirs} against {ours}",
            "use a better teacher, several teachers, or a smaller student",
        )
    noise = facts.rows.get(TEACHER_NOISE, 0.0)
    if noise >= NOISY:
        return (
            f"about {noise:.1%} of the labels look wrong: the teacher contradicts them with a probability above 95 %",
            "lower the weight of hard_labels, and check these labels",
        )
    if facts.seen < there:
        return (
            f"the student saw {facts.seen:,} of {there:,} training rows",
            "train longer: --epochs 1 or more, or --steps",
        )
    if not taught and facts.rows.get(TEACHER_CONFIDENT, 0.0) >= SURE:
        return (
            f"the teacher mostly repeats the labels: {_sureness(facts)}",
            "add text without labels with --unlabelled or --pool, where its answers are new; if there is none, try "
            "--augment mix",
        )
    if not taught:
        return (
            "every training row has a label, so the teacher adds little",
            "add text without labels with --unlabelled or --pool",
        )
    _, low, high = facts.gain
    return (
        f"{facts.test:,} test rows show differences from about {(high - low) / 2:.1f} points on",
        "repeat with --seeds 3, measure on more rows, or add text without labels",
    )


def _sureness(facts: GainFacts) -> str:
    right = facts.rows.get(TEACHER_RIGHT)
    said = (
        f"on {facts.rows.get(TEACHER_CONFIDENT, 0.0):.1%} of the labelled training rows its probability is above 95 %"
    )
    return said if right is None else f"it is right on {right:.1%} of the labelled training rows, and {said}"


def _there(facts: GainFacts) -> int:
    return int(facts.rows.get(LABELLED, 0) + facts.rows.get(TAUGHT, 0))
