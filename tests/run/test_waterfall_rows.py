"""The waterfall of a chain: what each stage cost and gained, against the one before it and in total."""

from __future__ import annotations

import pytest
from measured_models import measured_model

from compress.run import waterfall
from compress.run.waterfall import Step

ONNX = {"runtime": "onnxruntime 1.22, padded"}


@pytest.fixture
def steps() -> list[Step]:
    return [
        Step("teacher", measured_model("teacher", 190, mb=40.0, ms=8.0)),
        Step("0-distill", measured_model("stage-0", 180, mb=20.0, ms=4.0)),
        Step("1-export", measured_model("student", 184, mb=5.0, ms=1.0, context=ONNX)),
    ]


def test_each_row_is_against_the_one_before_and_the_last_against_the_first(steps: list[Step]) -> None:
    first, one, two, total = waterfall.rows(steps)
    assert "difference" not in first
    assert "times_smaller" not in first
    assert (one["times_smaller"], one["times_faster"]) == (2.0, 2.0)
    assert one["difference"][0] == pytest.approx(-0.05)
    assert two["difference"][0] == pytest.approx(0.02)
    assert (two["times_smaller"], two["times_faster"]) == (4.0, 4.0)
    assert (total["stage"], total["times_smaller"], total["times_faster"]) == ("total", 8.0, 8.0)
    assert total["difference"][0] == pytest.approx(-0.03)
    assert all(low <= value <= high for value, low, high in (row["difference"] for row in (one, two, total)))


def test_the_table_for_people(steps: list[Step]) -> None:
    columns, rows = waterfall.table(waterfall.rows(steps))
    assert columns[:3] == ("stage", "accuracy x 100", "change from previous")
    assert rows[0] == ("teacher", "95.00 [91.00, 99.00]", "", "40.00", "", "8.00 ms", "", "torch")
    assert rows[2][2].startswith("+2.00 [")
    assert rows[2][3:] == ("5.00", "4.00x", "1.00 ms", "4.00x", "onnxruntime")
    assert "| total |" in waterfall.note(waterfall.rows(steps))


def test_figures_are_what_each_stage_took_away(steps: list[Step]) -> None:
    found = waterfall.figures(waterfall.rows(steps))
    assert found["waterfall/0-distill/mb_saved"] == 20.0
    assert found["waterfall/1-export/ms_saved"] == 3.0
    assert found["waterfall/1-export/points"] == pytest.approx(2.0), "hundredths"
    assert not any("total" in name or "teacher" in name for name in found)


def test_a_change_of_runtime_is_part_of_the_gain(steps: list[Step]) -> None:
    assert waterfall.lines(steps)[1:] == [
        "latencies were measured with torch and onnxruntime: a change of runtime is part of the gain"
    ]
    assert len(waterfall.lines(steps[:2])) == 1


def test_simulated_integers_are_an_estimate_without_a_speed(steps: list[Step]) -> None:
    steps[2] = Step("1-quantize", measured_model("student", 184, mb=5.0, simulated=True))
    row = waterfall.rows(steps)[2]
    assert (row["runtime"], row["latency_p50_ms"]) == ("simulated", None)
    assert row["quality"][0] == pytest.approx(0.92)
    assert "times_faster" not in row
    assert "waterfall/1-quantize/ms_saved" not in waterfall.figures(waterfall.rows(steps))
    assert len(waterfall.lines(steps)) == 1, "it has no speed that a runtime could have changed"
    assert waterfall.table(waterfall.rows(steps))[1][2][-3:] == ("", "", "simulated")


def test_a_stage_whose_metric_is_undefined_was_measured_all_the_same(steps: list[Step]) -> None:
    """A student that gives all rows one answer has no correlation: that makes it no simulation."""
    steps[1] = Step("0-distill", measured_model("stage-0", None, mb=20.0, ms=4.0))
    _, one, two, _ = found = waterfall.rows(steps)
    assert (one["runtime"], one["quality"]) == ("torch", None)
    assert "difference" not in one
    assert "difference" not in two, "nothing to compare with"
    assert two["times_faster"] == 4.0
    assert "<svg" in waterfall.picture("x", found)
