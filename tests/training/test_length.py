"""How long a training without epochs and steps lasts, and how fast it goes: decided by its validations alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from training_toy import Flag, Log, Source, prints, run

from compress.contracts import TrainingPlan
from compress.errors import Stopped, UserError
from compress.training.length import (
    DECAY,
    Length,
    choose_length,
    describe_unfinished,
    find_end,
    fixed_length,
    is_validation_due,
)
from compress.training.rate import choose_rate
from compress.training.schedule import open_ended_rate, total_steps

SHORT = Length(least=8, most=24, first=1, every=2)
AUTO: dict[str, Any] = {"steps": None, "min_steps": 8, "max_steps": 24, "validate_every": 2}
"""Of the toy: `early` is best after step 4, three validations later the rate falls, the fall takes a quarter."""


def rows(values: Sequence[float], every: int = 2, name: str = "m") -> list[dict[str, float]]:
    return [{"step": every * (i + 1), name: value} for i, value in enumerate(values)]


# --- bounds -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("epoch_steps", "least", "most"),
    [(1, 200, 1000), (16, 200, 1000), (140, 280, 1400), (280, 500, 2800), (2093, 500, 10_000), (31_250, 500, 31_250)],
)
def test_small_data_is_read_often_and_large_data_once(epoch_steps: int, least: int, most: int) -> None:
    length = choose_length(TrainingPlan(), epoch_steps)
    assert (length.least, length.most) == (least, most)
    assert str(length) == f"{least:,} to {most:,} steps"


@given(st.integers(1, 10**6), st.none() | st.integers(1, 10**5), st.none() | st.integers(1, 10**5))
def test_what_a_person_bounds_is_kept(epoch_steps: int, low: int | None, high: int | None) -> None:
    if low is not None and high is not None and low > high:
        low, high = high, low
    length = choose_length(TrainingPlan(min_steps=low, max_steps=high), epoch_steps)
    assert 1 <= length.least <= length.most
    assert low is None or length.least == low
    assert high is None or length.most == high
    assert 1 <= length.first <= length.least


def test_a_known_length_lies_within_the_bounds() -> None:
    assert fixed_length(TrainingPlan(), 16) == 200
    assert fixed_length(TrainingPlan(), 300) == 900
    assert fixed_length(TrainingPlan(max_steps=50), 300) == 50


def test_two_lengths_and_turned_bounds_are_rejected() -> None:
    with pytest.raises(ValidationError, match="epochs and steps both set the length"):
        TrainingPlan(epochs=1, steps=1)
    with pytest.raises(ValidationError, match="min_steps 9 is more than max_steps 8"):
        TrainingPlan(min_steps=9, max_steps=8)


def test_limits_that_are_not_set_are_in_no_hash() -> None:
    assert {"min_steps", "max_steps"}.isdisjoint(TrainingPlan(steps=3).model_dump())
    assert TrainingPlan(max_steps=3).model_dump()["max_steps"] == 3


# --- the end ----------------------------------------------------------------------------------------------------


def test_a_metric_that_goes_on_rising_uses_all_steps() -> None:
    end = find_end(rows([0.1 * i for i in range(12)]), SHORT, {"m": "max"})
    assert (end.decay, end.total, end.stopped) == (18, 24, False)


def test_the_rate_falls_after_some_validations_without_a_rise() -> None:
    end = find_end(rows([0.1, 0.5, 0.5, 0.4, 0.5004]), SHORT, {"m": "max"})
    assert (end.decay, end.total, end.stopped) == (10, 14, True)
    assert not find_end(rows([0.1, 0.5, 0.5, 0.4, 0.52]), SHORT, {"m": "max"}).stopped


def test_never_before_the_least_steps() -> None:
    flat = rows([0.5] * 20)
    assert find_end(flat, Length(8, 24, 1, 2), {"m": "max"}).total == 11  # after step 8: the fourth
    assert find_end(flat, Length(20, 24, 1, 2), {"m": "max"}).total == 22


def test_a_second_metric_that_gets_better_keeps_it_going() -> None:
    history = [{**row, "loss": 1 - 0.05 * i} for i, row in enumerate(rows([0.5] * 8))]
    assert find_end(history, SHORT, {"m": "max"}).stopped
    assert not find_end(history, SHORT, {"m": "max", "loss": "min"}).stopped


def test_figures_that_are_missing_or_not_finite_are_no_rise() -> None:
    assert find_end(rows([math.nan] * 8), SHORT, {"m": "max"}).stopped
    assert find_end(rows([0.1] * 8, name="other"), SHORT, {"m": "max"}).stopped


@given(st.lists(st.floats(0, 1), max_size=40), st.integers(1, 60), st.integers(0, 60), st.sampled_from(["max", "min"]))
def test_later_validations_never_move_an_end(values: list[float], least: int, more: int, mode: Any) -> None:
    length = Length(least, least + more, max(1, least // 8), 2)
    history = rows(values)
    ends = [find_end(history[:n], length, {"m": mode}) for n in range(len(history) + 1)]
    found = [end for end in ends if end.stopped]
    assert all(end == found[0] for end in found)
    for end in ends:
        assert length.least <= end.total <= length.most
        assert 0 <= end.decay < end.total
        assert end.total - end.decay <= math.ceil(DECAY * end.total) + 1


def test_validations_grow_apart() -> None:
    length = Length(200, 10_000, 25)
    steps, validated = [], 0
    for step in range(1, 3000):
        if is_validation_due(step, validated, length):
            steps.append(step)
            validated = step
    assert steps[:3] == [25, 50, 75]
    assert steps[-1] - steps[-2] > 250


# --- the rate ---------------------------------------------------------------------------------------------------


def test_the_rate_rises_stays_and_falls_to_zero() -> None:
    plan = TrainingPlan(learning_rate=1.0 - 1e-9, warmup=0.25)
    end = find_end(rows([0.1, 0.5, 0.5, 0.4, 0.5]), SHORT, {"m": "max"})
    rates = [round(open_ended_rate(plan, step, SHORT, end), 6) for step in range(end.total)]
    assert rates == [0.5, *[1.0] * 10, 0.75, 0.5, 0.25]
    flat = plan.model_copy(update={"schedule": "constant"})
    assert round(open_ended_rate(flat, 13, SHORT, end), 6) == 1.0


@pytest.mark.parametrize(("hidden", "rate"), [(64, 5e-4), (384, 1e-4), (768, 4.2e-5), (1024, 2.9e-5), (8192, 1e-5)])
def test_wide_encoders_learn_at_lower_rates(hidden: int, rate: float) -> None:
    assert choose_rate(hidden) == rate


def test_auto_is_another_way_to_leave_the_rate_open() -> None:
    assert TrainingPlan.model_validate({"learning_rate": "auto"}).learning_rate is None


# --- the loop ---------------------------------------------------------------------------------------------------


def test_training_ends_when_its_metric_does_not_rise(tmp_path: Path) -> None:
    log = Log()
    result, _ = run(tmp_path, plan=AUTO, log=log)
    assert (result.steps, result.best_step, result.stopped) == (14, 4, True)
    assert result.end == "trained 14 steps: validation early stopped rising by step 10"


def test_a_loss_stops_falling(tmp_path: Path) -> None:
    result, _ = run(tmp_path, plan=AUTO, select=("loss", "min"), validate=lambda _: {"loss": 1.0})
    assert result.stopped
    assert "validation loss stopped falling by step" in result.end


def test_training_that_goes_on_rising_ends_at_the_most(tmp_path: Path) -> None:
    result, _ = run(tmp_path, plan=AUTO, select=("loss", "min"), validate=lambda m: {"loss": -float(m.student.seen)})
    assert (result.steps, result.stopped) == (24, False)
    assert result.end == "trained 24 steps: the maximum of 24 steps was reached"


def test_a_control_takes_exactly_the_steps_of_its_student(tmp_path: Path) -> None:
    result, _ = run(tmp_path, plan={**AUTO, "min_steps": 14, "max_steps": 14})
    assert (result.steps, result.end) == (14, "")


def test_nothing_to_find_the_end_by_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the length of training cannot be found"):
        run(tmp_path, plan=AUTO, select=None, validate=None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("auto")
    _, module = run(folder, plan=AUTO)
    return prints(folder, module)


@pytest.mark.thorough
@pytest.mark.parametrize("cut", range(14))
def test_every_cut_of_an_open_ended_run_ends_with_the_same_bits(
    cut: int, tmp_path: Path, whole: dict[str, str]
) -> None:
    flag = Flag()
    source = Source(hooks={cut: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Stopped, match=f"after step {cut + 1} of "):
        run(tmp_path, plan=AUTO, stop=flag, source=source)
    result, module = run(tmp_path, plan=AUTO, resume=True)
    assert prints(tmp_path, module) == whole
    assert (result.steps, result.notes) == (14, [])


def test_other_bounds_are_another_run(tmp_path: Path) -> None:
    flag = Flag()
    with pytest.raises(Stopped):
        run(tmp_path, plan=AUTO, stop=flag, source=Source(hooks={3: lambda: setattr(flag, "requested", "SIGTERM")}))
    with pytest.raises(UserError, match="different settings") as raised:
        run(tmp_path, plan={**AUTO, "max_steps": 25}, resume=True)
    assert "8 to 24 steps → 8 to 25 steps" in str(raised.value.why)


def test_a_total_that_is_open_is_told_as_the_most() -> None:
    assert total_steps(TrainingPlan(max_steps=77), Source()) == 77


# --- what to say at the end -------------------------------------------------------------------------------------


def test_a_metric_that_still_rises_is_told() -> None:
    told = describe_unfinished(rows([0.2, 0.4, 0.6, 0.74], every=100), "m", "max")
    assert told == "validation m was still rising at the end: 0.6 after step 300, 0.74 after 400"
    fell = describe_unfinished(rows([3.0, 2.0, 1.0], every=100), "m", "min")
    assert fell == "validation m was still falling at the end: 2 after step 200, 1 after 300"


def test_metrics_have_the_names_of_the_tables() -> None:
    for metric, name in (("spearman", "Spearman"), ("entity_f1", "entity F1"), ("my_own", "my own")):
        history = [{**row, metric: row["m"]} for row in rows([0.2, 0.4, 0.6, 0.74], every=100)]
        told = describe_unfinished(history, metric, "max") or ""
        assert told.startswith(f"validation {name} was still rising")


@pytest.mark.parametrize("values", [[], [0.7], [0.2, 0.7, 0.7], [0.2, 0.8, 0.7, 0.75], [0.7, 0.7, 0.7, 0.705]])
def test_a_metric_that_does_not_is_not(values: list[float]) -> None:
    assert describe_unfinished(rows(values, every=100), "m", "max") is None


@pytest.mark.parametrize(
    ("length", "told"),
    [
        ({"steps": 1}, "1 step"),
        ({"steps": 1_000_000}, "1,000,000 steps"),
        ({"epochs": 1}, "1 epoch"),
        ({"epochs": 0.5}, "0.5 epochs"),
        ({}, "automatic length"),
    ],
)
def test_a_length_in_words(length: dict[str, Any], told: str) -> None:
    assert TrainingPlan(**length).length == told
