"""A time limit becomes a number of steps: how many, that timing leaves no trace, and that a run keeps the number."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from training_toy import Flag, Log, Source, prints, run, weights_print

from compress.contracts import TrainingPlan
from compress.errors import UserError
from compress.training import rehearsal
from compress.training.length import Length
from compress.training.time_limit import (
    MAX_ROUNDS,
    ROUNDS,
    StepTimes,
    count_steps_in_time,
    count_validations,
    limit_length,
    time_steps,
)

PLAN: dict[str, Any] = {"learning_rate": 0.02}


class Machine:
    """A clock that steps and validations advance; the first step takes long."""

    def __init__(self, step: float, validation: float = 0.0) -> None:
        self.now, self.step, self.validation, self.order = 0.0, step, validation, ""

    def make_step(self, number: int) -> None:
        self.now += self.step if "s" in self.order else 10 * self.step
        self.order += "s"

    def validate(self) -> None:
        self.now += self.validation
        self.order += "v"

    def time(self, limit: float, **more: Any) -> StepTimes:
        return time_steps(self.make_step, self.validate, limit, lambda: self.now, **more)


def test_steps_and_a_validation_are_timed() -> None:
    times = (machine := Machine(0.5, 3.0)).time(10)
    assert (times.step, times.validation, times.spent) == pytest.approx((0.5, 3.0, 3 + 5 + 1.5))
    assert machine.order == "v" + "s" * (1 + ROUNDS), "first the validation: a stop would save the weights"
    Machine(0.5).time(1e6)
    (machine := Machine(0.5)).time(1e6)
    assert machine.order.count("s") == 1 + MAX_ROUNDS
    (machine := Machine(0.5)).time(1e6, stopped=lambda: True)
    assert machine.order.count("s") == 2
    times = (machine := Machine(0.5)).time(10, untimed=4)
    assert (times.step, times.spent) == pytest.approx((0.5, 5 + 3 * 0.5 + 1.5))
    assert machine.order.count("s") == 4 + ROUNDS
    (machine := Machine(0.5)).time(2, untimed=40)
    assert machine.order.count("s") == 2 + ROUNDS, "those before take a tenth of the limit at most, but for the first"
    (machine := Machine(0.5)).time(10, untimed=4, stopped=lambda: True)
    assert machine.order.count("s") == 2


def test_as_many_steps_as_fit_with_their_validations() -> None:
    assert count_steps_in_time(StepTimes(0.5, 0.0, 10.0), 60, 1000, lambda steps: 0) == 100
    assert count_steps_in_time(StepTimes(0.5, 0.0, 10.0), 60, 12, lambda steps: 0) == 12, "no more than there are"
    assert count_steps_in_time(StepTimes(0.5, 2.0, 10.0), 60, 1000, lambda steps: steps // 10) == 72
    assert count_steps_in_time(StepTimes(0.1, 3.0, 0.0), 60, 10**6, lambda steps: steps // 3) == 56
    with pytest.raises(UserError, match="no training step fits into the time limit of 6 s") as error:
        count_steps_in_time(StepTimes(3.0, 0.0, 5.0), 6, 1000, lambda steps: 0)
    assert error.value.where == "training.minutes"


def test_validations_are_counted() -> None:
    assert count_validations(TrainingPlan(epochs=3, **PLAN), None, 10, 25) == 3
    assert count_validations(TrainingPlan(steps=100, validate_every=5, **PLAN), None, 10, 25) == 5
    short = TrainingPlan(steps=625, **PLAN)
    assert [count_validations(short, None, epoch, 625) for epoch in (4, 31, 32, 700)] == [20, 21, 20, 1]
    assert count_validations(TrainingPlan(**PLAN), Length(16, 100, 2), 10, 10) == 5
    assert count_validations(TrainingPlan(validate_every=3, **PLAN), Length(16, 100, 2, 3), 10, 10) == 4
    assert count_validations(TrainingPlan(**PLAN), Length(16, 10**9, 2), 10, 10**8) < 200, "they grow apart"
    assert limit_length(Length(20, 100, 5), 50) == Length(20, 50, 5)
    assert limit_length(Length(20, 100, 5), 3) == Length(3, 3, 3)


# --- in the loop ------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The limits that steps were timed for. A step takes a second on this machine, of which 8 are left in a quarter of
    a minute."""
    found: list[float] = []

    def measure(
        make_step: Callable[[int], None], validate: Callable[[], object], limit: float, clock: Any, **more: Any
    ) -> StepTimes:
        found.append(limit)
        validate()
        for number in range(3):
            make_step(number)
        return StepTimes(1.0, 0.0, limit - 8)

    monkeypatch.setattr(rehearsal, "time_steps", measure)
    return found


def test_a_limited_training_is_one_of_so_many_steps(tmp_path: Path, timed: list[float]) -> None:
    said: list[str] = []
    whole, plain = run(tmp_path / "plain", plan={"steps": 8})
    result, limited = run(tmp_path / "limited", plan={"steps": 12, "minutes": 0.25}, say=said.append)
    assert timed == [15]
    assert (result.steps, whole.steps) == (8, 8)
    assert weights_print(limited) == weights_print(plain), "learning rates, dropout and rows of 8 steps"
    assert said[0] == "time limit of 15 s: at most 8 of up to 12 steps"
    assert result.end == "trained 8 steps: as many as fit into 15 s"
    result, _ = run(tmp_path / "short", plan={"steps": 5, "minutes": 0.25})
    assert (result.steps, result.end) == (5, "")


def test_a_training_of_automatic_length_ends_in_time(tmp_path: Path, timed: list[float]) -> None:
    result, _ = run(tmp_path, plan={"steps": None, "minutes": 0.25, "validate_every": None}, watched={"loss": "min"})
    assert result.steps == 8
    assert result.end == "trained 8 steps: as many as fit into 15 s"


@pytest.mark.parametrize("at", [5, 7])
def test_a_resumed_run_keeps_the_number(at: int, tmp_path: Path, timed: list[float]) -> None:
    plan = {"steps": 12, "minutes": 0.25}
    run(tmp_path / "whole", plan=plan)
    flag = Flag()
    source = Source(hooks={at: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Exception, match="the state is saved"):
        run(tmp_path / "stopped", plan=plan, source=source, stop=flag)
    newest = max((tmp_path / "stopped/checkpoints").glob("step-*"), key=lambda path: path.name)
    assert json.loads((newest / "state.json").read_text())["chosen_steps"] == 8
    seen = len(timed)
    result, _ = run(tmp_path / "stopped", plan=plan, resume=True, log=Log())
    assert len(timed) == seen, "nothing is timed a second time"
    assert result.steps == 8
    assert prints(tmp_path / "stopped") == prints(tmp_path / "whole")


def test_several_processes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    with pytest.raises(UserError, match="a time limit does not support several processes"):
        run(tmp_path, plan={"minutes": 1.0})
