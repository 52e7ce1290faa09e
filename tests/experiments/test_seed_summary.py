"""What several seeds say together: mean, spread, the gain over the control, and which sentences they allow."""

from __future__ import annotations

import statistics
from typing import Any

import pytest
from measured_models import measured_model

from compress.errors import UserError
from compress.experiments.seeds import Summary
from compress.measure.measured_model import MeasuredModel


def run(student: int, control: int | None = None, **more: Any) -> list[MeasuredModel]:
    found = [measured_model("teacher", 190), measured_model("student", student, **more)]
    return found if control is None else [*found, measured_model("control", control)]


def test_mean_and_spread_of_each_role() -> None:
    summary = Summary([3, 4, 5], [run(180), run(170), run(184)])
    shares = [0.9, 0.85, 0.92]
    assert summary.values == pytest.approx(
        {
            "seeds/count": 3.0,
            "seeds/teacher_accuracy_mean": 0.95,
            "seeds/teacher_accuracy_sd": 0.0,
            "seeds/student_accuracy_mean": statistics.mean(shares),
            "seeds/student_accuracy_sd": statistics.stdev(shares),
        }
    )
    columns, rows = summary.table()
    assert columns == ("accuracy x 100", "seed 3", "seed 4", "seed 5", "mean", "sd")
    assert rows[1] == ("student", "90.00", "85.00", "92.00", "89.00", "3.61")
    assert summary.lines() == [
        "mean and standard deviation of 3 seeds; no run was left out",
        "the best student of 3: seed 5, 92.00",
    ]


def test_one_seed_has_no_spread_and_no_best() -> None:
    summary = Summary([7], [run(180, 170)])
    assert summary.values["seeds/student_accuracy_sd"] == 0.0
    assert summary.gain is None, "an interval needs two"
    assert len(summary.lines()) == 1


@pytest.mark.parametrize(
    ("students", "word"),
    [
        ((180, 181, 182), "gain from the teacher (+"),
        ((160, 161, 162), "loss from the teacher (-"),
        ((150, 190, 170), "no measurable gain from the teacher (+0.00 points"),
        ((180, 181), "no verdict from fewer than 3 seeds (+"),
    ],
)
def test_the_gain_over_the_control_is_named_only_where_its_interval_excludes_0(
    students: tuple[int, ...], word: str
) -> None:
    summary = Summary(range(len(students)), [run(student, 170) for student in students])
    gains = [(right - 170) / 200 for right in students]
    assert summary.gain is not None
    assert summary.gain.value == pytest.approx(statistics.mean(gains))
    assert summary.values["seeds/gain"] == pytest.approx(statistics.mean(gains))
    t = {2: 12.706, 3: 4.303}[len(gains)]  # Student's, one less degrees of freedom
    half = t * statistics.stdev(gains) / len(gains) ** 0.5
    assert summary.values["seeds/gain_low"] == pytest.approx(statistics.mean(gains) - half, rel=1e-3, abs=1e-6)
    assert word in summary.lines()[-2]
    assert summary.table()[1][-1][: len(gains) + 1] == (
        "gain from the teacher",
        *(f"{100 * gain:+.2f}" for gain in gains),
    )


def test_the_smallest_gain_that_could_have_been_found_stands_beside_the_verdict() -> None:
    """A spread of 1 point: 3.3 points with three seeds."""
    summary = Summary(range(3), [run(student, 170) for student in (168, 170, 172)])
    least = summary.values["seeds/smallest_detectable_gain"]
    assert least == pytest.approx(0.01 * 3.264, rel=1e-3)
    assert summary.lines()[-1] == "smallest gain that 3 seeds with this spread would find in 4 of 5 cases: 3.3 points"


def test_the_gain_is_over_the_best_control_on_average() -> None:
    seeds = [
        [*run(180, 150), measured_model("control-from-teacher", 176)],
        [*run(182, 178), measured_model("control-from-teacher", 177)],
    ]
    summary = Summary([0, 1], seeds)
    assert summary.gains == pytest.approx([4 / 200, 5 / 200])
    assert any("the student against its best control (control from teacher)" in line for line in summary.lines())


def test_a_model_without_a_figure_ends_it_in_one_line() -> None:
    with pytest.raises(UserError, match="student has no accuracy on these rows"):
        Summary([0], [[measured_model("student", None)]])


def test_estimates_of_simulated_integers_keep_their_name() -> None:
    """A quantized model without a file that runs here is scored with its integers computed in floats."""
    summary = Summary([0, 1], [run(180, simulated=True), run(182, simulated=True)])
    assert summary.values["fake_quantized/seeds/student_accuracy_mean"] == pytest.approx(0.905)
    assert "seeds/student_accuracy_mean" not in summary.values
    assert "seeds/teacher_accuracy_mean" in summary.values
    assert [row[0] for row in summary.table()[1]] == ["teacher", "student, simulated"]
