"""Which model to ship."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from compare_rows import row

from compress.compare.frontier import rank_rows
from compress.compare.gather import one_row_each
from compress.compare.rows import SPEEDUP, Row, name_teachers
from compress.compare.verdict import WITHOUT_LABELS, Verdict, _describe_difference, decide, list_lines
from compress.tracking.reading import PARENT, StoredRun
from evaluation.quality.intervals import Interval

TEACHER: dict[str, Any] = {"facts": {"role": "teacher"}}


def verdict(*rows: Row) -> Verdict:
    found = decide(rank_rows(rows)[0])
    assert found is not None
    return found


def test_the_smallest_and_fastest_without_a_measurable_loss() -> None:
    found = verdict(
        row("teacher", 180, 40.0, 8.0, **TEACHER), row("student", 181, 20.0, 4.0), row("int8", 179, 10.0, 3.0),
        row("tiny", 120, 1.0, 0.5), row("slow", 180, 9.0, 40.0),
    )  # fmt: skip
    assert (found.ship, found.against) == ("int8", "teacher")
    assert found.sentence.startswith("ship int8: 4.0x smaller, 2.7x faster, no measurable loss (-0.5 [")
    assert found.sentence.endswith("] points of accuracy), against teacher")
    assert found.reasons["student"] == "2.0x larger and 1.3x slower"
    assert found.reasons["teacher"] == "the reference, 4.0x larger and 2.7x slower"
    assert found.reasons["tiny"].startswith("a measurable loss (-30.0 [")
    assert found.reasons["slow"] == "1.1x smaller and 13.3x slower"
    first, *others = found.lines()
    assert first == f"verdict: {found.sentence}"
    assert "  not student: 2.0x larger and 1.3x slower" in others
    assert found.as_json()["why_not"] == found.reasons


@pytest.mark.parametrize(
    ("metric", "said"),
    [("accuracy", "-1.2 [-4.0, +1.0] points of accuracy"), ("ndcg_at_10", "-0.012 [-0.040, +0.010] nDCG@10")],
)
def test_differences_are_on_the_scale_of_the_metric(metric: str, said: str) -> None:
    made = row("a", context={"metric": metric}, values={f"quality/{metric}": 0.9})
    text = _describe_difference(made, Interval(-0.0123, -0.04, 0.01, 200, 1000))
    assert text == f"no measurable loss ({said})"


def test_nothing_is_shipped_that_loses_measurably() -> None:
    found = verdict(row("teacher", 190, 40.0, 8.0, **TEACHER), row("tiny", 120, 1.0, 0.5), row("copy", 190, 40.0, 8.1))
    assert found.ship == "teacher"
    assert found.sentence == "keep teacher: no other model is smaller or faster without a measurable loss"
    assert found.reasons["copy"] == "same size and same speed"


def test_a_smaller_model_that_is_slower_by_more_is_not_denied() -> None:
    found = verdict(row("teacher", 190, 40.0, 8.0, **TEACHER), row("int8", 189, 10.0, 36.0))
    assert found.ship == "teacher"
    assert found.sentence == (
        "keep teacher: no other model without a measurable loss saves more than it costs, in size and latency together"
    )
    assert found.reasons["int8"] == "4.0x smaller and 4.5x slower"


WEAK = {"quality/majority_baseline": 0.6, "baseline/tfidf_logistic_regression": 0.65}


def test_a_model_below_a_baseline_is_not_shipped() -> None:
    rows = [row("teacher", 136, 40.0, 8.0, values=WEAK, **TEACHER), row("small", 130, 10.0, 2.0, values=WEAK)]
    found = verdict(*rows, row("student", 134, 20.0, 4.0, values=WEAK))
    assert found.ship == "student", "65 % of 200 rows is not above 65 %"
    assert found.reasons["small"] == "not better than TF-IDF + logistic regression, 65.00 %"


def test_where_the_reference_is_not_above_a_baseline_the_verdict_says_so() -> None:
    chance = {"quality/majority_baseline": 0.9, "baseline/tfidf_logistic_regression": 0.7}
    found = verdict(
        row("teacher", 180, 40.0, 8.0, values=chance, **TEACHER), row("small", 180, 10.0, 2.0, values=chance)
    )
    assert found.sentence.endswith("against teacher; but teacher is not better than the most common label, 90.00 %")


def test_without_a_teacher_the_best_is_the_reference() -> None:
    found = verdict(row("a", 178, 10.0, 3.0), row("b", 180, 40.0, 8.0))
    assert (found.ship, found.against) == ("a", "b")


@pytest.mark.parametrize("metric", WITHOUT_LABELS)
def test_similarity_to_the_parent_is_no_loss(metric: str) -> None:
    """Any change lowers it, and the parent has none: the least changed model would always be kept."""
    rows = []
    for name, mb, value in (("int8", 20.0, 0.96), ("static", 10.0, 0.6)):
        figures = {f"quality/{metric}{end}": value + by for end, by in (("", 0.0), ("_low", -0.02), ("_high", 0.02))}
        rows.append(row(name, None, mb, mb, values=figures, context={"metric": metric}))
    judged, _ = rank_rows([*rows, row("parent", None, 80.0, 90.0, **TEACHER)])
    assert [one.place for one in judged] == ["on it", "on it", "not ranked"]
    assert decide(judged) is None
    assert list_lines(judged, None)[0].startswith("verdict: none without labels: quality is how similar the vectors")
    assert list_lines(rank_rows([row("one"), row("other")])[0], None) == []


def test_what_does_not_compare_says_why() -> None:
    values = {"fake_quantized/accuracy": 0.9, "fake_quantized/accuracy_low": 0.88, "fake_quantized/accuracy_high": 0.92}
    found = verdict(
        row("teacher", 180, 40.0, 8.0, **TEACHER), row("busy", 180, 20.0, None),
        row("elsewhere", 180, 10.0, 4.0, context={"threads": "4"}), row("other data", context={"dataset_digest": "x"}),
        row("simulated", None, 5.0, None, values=values), row("bare", None, 5.0),
    )  # fmt: skip
    assert found.ship == "elsewhere"
    assert "4.0x smaller, speed unknown" in found.sentence
    assert found.reasons["busy"] == "2.0x larger and speed unknown"
    assert found.reasons["other data"] == "measured on other data"
    assert found.reasons["simulated"].startswith("simulated quantization")
    assert found.reasons["bare"] == "not measured (quality)"
    assert decide(rank_rows([row("alone"), row("bare", None)])[0]) is None


def test_the_interval_of_the_speed_is_that_of_models_measured_together() -> None:
    speed = {"vs_teacher/speedup": 2.0, "vs_teacher/speedup_low": 1.9, "vs_teacher/speedup_high": 2.3}
    teacher, student = row("teacher", 180, 40.0, 8.0, **TEACHER), row("student", 180, 20.0, 4.0, values=speed)
    assert "2.0x faster [1.9, 2.3]" in verdict(teacher, student).sentence
    unpaired = [dataclasses.replace(r, resampled=None) for r in (teacher, student)]
    assert "no measurable loss (+0.0 [-" in verdict(*unpaired).sentence
    assert "[1.9" not in verdict(row("other", 181, 40.0, 8.0), student).sentence


def test_the_interval_of_a_slower_model_is_of_how_much_slower_it_is() -> None:
    speed = {"vs_teacher/speedup": 0.5, "vs_teacher/speedup_low": 0.4, "vs_teacher/speedup_high": 0.625}
    teacher, student = row("teacher", 180, 40.0, 8.0, **TEACHER), row("student", 180, 80.0, 16.0, values=speed)
    assert verdict(teacher, student).reasons["student"] == "2.0x larger and 2.0x slower [1.6, 2.5]"


def test_how_much_faster_is_of_the_mean_latency() -> None:
    slow, fast = ({"speed/latency_mean_ms": ms} for ms in (9.0, 3.0))
    small, large = row("a", 180, 10.0, 4.0, values=fast), row("b", 181, 40.0, 8.0, values=slow)
    assert "3.0x faster, " in verdict(small, large).sentence


def test_the_frontier_is_of_the_mean_latency() -> None:
    """More than half of the texts are answered by the first model of a cascade, so the median leaves the others out."""
    cascade = row("cascade", 180, 10.0, 2.0, values={"speed/latency_mean_ms": 9.0})
    single = row("single", 181, 10.0, 4.0, values={"speed/latency_mean_ms": 4.0})
    fixed = row("fixed", 180, 10.0, 5.0)
    found = [one.candidate for one in (cascade, single, fixed)]
    assert [None if one is None else one.latency for one in found] == [9.0, 4.0, 5.0]


def test_runs_of_one_command_were_timed_together() -> None:
    speed = {"vs_teacher/speedup": 2.5, "vs_teacher/speedup_low": 1.9, "vs_teacher/speedup_high": 2.8}
    student, teacher = row("s", 180, 20.0, 4.0, values=speed), row("s/reference", 180, 40.0, 8.0, **TEACHER)

    def stored(one: Row, number: str, tags: dict[str, str]) -> Row:
        return dataclasses.replace(one, run=StoredRun(number, one.name, "toy", 0, "", tags=tags))

    ours = stored(student, "1", {})
    assert "2.5x faster [1.9, 2.8]" in verdict(ours, stored(teacher, "2", {PARENT: "1"})).sentence
    assert "2.0x faster, " in verdict(ours, stored(teacher, "3", {})).sentence, "timed by another command"
    assert "2.0x faster, " in verdict(student, stored(teacher, "2", {PARENT: "1"})).sentence, "timed now, and then"
    assert "2.0x faster, " in verdict(ours, teacher).sentence


def test_runs_of_one_teacher_are_compared_by_what_each_timed_beside_it() -> None:
    """The machine was twice as fast in the second run: its milliseconds say nothing of the first one's models."""
    rows = name_teachers([
        _stored("slow", "1", "", 20.0, 4.0, "a", values=_speed(2.0)),
        _stored("teacher", "2", "1", 40.0, 8.0, "t", **TEACHER),
        _stored("fast", "3", "", 10.0, 1.0, "b", values=_speed(4.0)),
        _stored("teacher again", "4", "3", 40.0, 4.0, "t", **TEACHER),
    ])  # fmt: skip
    assert [one.beside for one in rows] == ["t", None, "t", None]
    once, _ = one_row_each(rows)
    found = verdict(*once)
    assert "4.0x smaller, 4.0x faster [3.9, 4.1], " in found.sentence
    assert found.reasons["teacher"] == "the reference, 4.0x larger and 4.0x slower"
    assert found.reasons["slow"] == "2.0x larger and 2.0x slower"
    several = dataclasses.replace(rows[3], facts={**rows[3].facts, "fingerprint": "other"}, run=rows[1].run)
    assert name_teachers([rows[0], rows[1], several])[0].beside is None, "an ensemble"


def test_models_of_one_teacher_are_ranked_by_what_each_timed_beside_it() -> None:
    """In the milliseconds of the second run, whose machine was twice as fast, `fast` would not be the faster one."""
    fast = _stored("fast", "1", "", 20.0, 4.0, "a", values=_speed(4.0))
    slow = _stored("slow", "3", "", 20.0, 3.0, "b", values=_speed(8 / 3))
    teachers = _stored("t", "2", "1", 40.0, 16.0, "t", **TEACHER), _stored("t", "4", "3", 40.0, 8.0, "t", **TEACHER)
    for shown in ((), teachers[:1], teachers):
        rows = name_teachers([fast, slow, *teachers])
        judged, notes = rank_rows([*rows[:2], *rows[2 : 2 + len(shown)]])
        assert [(one.place, one.by) for one in judged[:2]] == [("on it", None), ("dominated", "fast")]
        assert any("the machine's speed differed between runs" in note for note in notes)
    alone, notes = rank_rows([fast, slow])
    assert [(one.place, one.by) for one in alone] == [("dominated", "slow"), ("on it", None)], "of no known teacher"
    assert not any("differed" in note for note in notes)


def _stored(name: str, number: str, above: str, size: float, ms: float, model: str, **more: Any) -> Row:
    facts = {"fingerprint": model} | more.pop("facts", {})
    one = row(name, 180, size, ms, facts=facts, **more)
    return dataclasses.replace(one, run=StoredRun(number, name, "toy", 0, "", tags={PARENT: above}))


def _speed(value: float) -> dict[str, float]:
    return {f"{SPEEDUP}{end}": value + change for end, change in (("", 0), ("_low", -0.1), ("_high", 0.1))}


SHAPE: dict[str, Any] = {"values": {"size/params_m": 2.0, "size/params_no_embedding_m": 1.0, "speed/gflops": 0.123457}}


def test_of_two_seeds_none_is_faster() -> None:
    exact = {"values": {**SHAPE["values"], "speed/gflops": 0.12345678}}  # of a model that was measured now
    one, other = row("seed-0", 181, 10.0, 6.5, **exact), row("seed-1", 180, 10.0, 5.0, **SHAPE)
    found = verdict(one, other)
    assert found.sentence == "keep seed-0: no other model is smaller or faster without a measurable loss"
    assert found.reasons["seed-1"] == "same size and same speed"
    judged, notes = rank_rows([one, dataclasses.replace(other, resampled=one.resampled)])
    assert [j.place for j in judged] == ["on it", "on it"]
    assert "or of models of one shape, count as equal" in notes[0]


def test_of_seeds_that_are_faster_than_the_teacher_the_best_is_shipped() -> None:
    teacher = row("teacher", 180, 40.0, 20.0, **TEACHER)
    found = verdict(teacher, row("seed-0", 179, 10.0, 5.0, **SHAPE), row("seed-1", 180, 10.0, 6.5, **SHAPE))
    assert found.ship == "seed-1"
    assert found.reasons["seed-0"] == "same size and same speed"
    control, student = ({**SHAPE, "facts": {"role": role}} for role in ("control", "student"))
    alike = row("seed-0/control", 180, 10.0, 5.0, **control), row("seed-0", 180, 10.0, 6.5, **student)
    assert verdict(teacher, *alike).ship == "seed-0"


@pytest.mark.parametrize(
    "change",
    [
        {"values": {**SHAPE["values"], "speed/gflops": 0.4}},
        {"values": {"size/params_m": 2.0}},
        {**SHAPE, "context": {"runtime": "onnxruntime 1.31, length buckets"}},
        {**SHAPE, "context": {"precision": "int8 per-token"}},
        {**SHAPE, "facts": {"student.layers": "6"}},
    ],
)
def test_models_of_other_shapes_are_as_fast_as_they_were_timed(change: dict[str, Any]) -> None:
    found = verdict(row("a", 181, 10.0, 6.5, **SHAPE), row("b", 180, 10.0, 5.0, **change))
    assert found.sentence.startswith("ship b: same size, 1.3x faster, ")
