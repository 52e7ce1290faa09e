"""The reason why distillation gained or not follows from what the run measured."""

from __future__ import annotations

from dataclasses import replace

import pytest
from measured_models import measured_model

from compress.run.gain import GainFacts, explain_gain, measure_gain
from compress.stages.shared.stage import LABELLED, TAUGHT, TEACHER_CONFIDENT, TEACHER_NOISE, TEACHER_RIGHT

ROWS = {LABELLED: 1000, TAUGHT: 0, TEACHER_RIGHT: 0.99, TEACHER_CONFIDENT: 0.6, TEACHER_NOISE: 0.0}
FACTS = GainFacts((0.3, -0.5, 1.1), 0.95, 0.90, ROWS, 3000, 800, "accuracy")


def with_rows(**rows: float) -> GainFacts:
    return replace(FACTS, rows={**ROWS, **rows})


@pytest.mark.parametrize(
    ("facts", "reason", "do"),
    [
        (replace(FACTS, teacher=0.89), "the teacher is not better than the control: 89.00 % against 90.00 %", "better"),
        (with_rows(teacher_contradicts=0.12), "about 12.0% of the labels look wrong", "hard_labels"),
        (replace(FACTS, seen=320), "the student saw 320 of 1,000 training rows", "--epochs"),
        (with_rows(teacher_confident=0.97), "it is right on 99.0% of the labelled training rows", "--unlabelled"),
        (FACTS, "every training row has a label", "--unlabelled"),
        (replace(with_rows(teacher_labelled=500), test=200), "200 test rows show differences from", "--seeds 3"),
        (replace(FACTS, teacher=None, rows={LABELLED: 10, TAUGHT: 20}), "800 test rows", "--seeds 3"),
    ],
)
def test_no_gain_has_a_reason(facts: GainFacts, reason: str, do: str) -> None:
    text, advice = explain_gain(facts)
    assert text.startswith(
        "no measurable difference on these rows, +0.30 points of accuracy over the control [-0.50, +1.10]"
    )
    assert reason in text
    assert do in advice


def test_a_loss_is_called_one() -> None:
    assert explain_gain(replace(FACTS, gain=(-2.0, -3.0, -1.0)))[0].startswith(
        "the student is worse on these rows, -2.00 points"
    )


@pytest.mark.parametrize(
    ("facts", "reason", "do"),
    [
        (
            with_rows(teacher_labelled=20_000),
            "20,000 rows that only the teacher labels (1,000 have labels)",
            "3,000 of",
        ),
        (FACTS, "on 60.0% of the labelled training rows its probability is above 95 %", "--pool"),
        (with_rows(teacher_confident=0.99), "the teacher's outputs on the labelled rows", "--unlabelled"),
    ],
)
def test_a_gain_has_one_too(facts: GainFacts, reason: str, do: str) -> None:
    text, advice = explain_gain(replace(facts, gain=(3.2, 2.0, 4.4)))
    assert text.startswith(
        "the student is better on these rows, +3.20 points of accuracy over the control [+2.00, +4.40]"
    )
    assert reason in text
    assert do in advice


def test_the_gain_is_over_the_best_control() -> None:
    found = [measured_model("teacher", 190), measured_model("student", 185), measured_model("control", 150)]
    gain = measure_gain(found)
    assert gain is not None
    assert gain.sentence.startswith("the student is better than its control on hard labels on these rows")
    gain = measure_gain([*found, measured_model("control-from-teacher", 184)])
    assert gain is not None
    assert gain.points[0] == pytest.approx(0.5)
    assert gain.points[1] < 0.5 < gain.points[2]
    assert "its best control on hard labels (control-from-teacher)" in gain.sentence
    assert "+0.50 points" in gain.sentence
    assert measure_gain(found[:2]) is None
