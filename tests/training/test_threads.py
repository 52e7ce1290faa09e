"""`--threads auto`: what is chosen, that nothing else changes, and that a run keeps the choice. The clock is given."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import training_toy
from training_toy import Flag, Log, Source, prints, run, weights_print

from compress.errors import UserError
from compress.training import threads
from compress.training.ranks import ranks
from compress.training.threads import MAX_ROUNDS, ROUNDS, ThreadChoice, choose_threads

STEPS = {"steps": 12, "checkpoint_every": 6, "validate_every": 12}


class Machine:
    """A clock that steps advance. costs: threads → seconds of a step, or of step after step."""

    def __init__(self, one: float | list[float], most: float | list[float]) -> None:
        self.now, self.costs = 0.0, {1: one, torch.get_num_threads(): most}
        self.steps: list[tuple[int, int]] = []

    def clock(self) -> float:
        return self.now

    def step(self, number: int) -> None:
        count = torch.get_num_threads()
        cost, warm = self.costs[count], len(self.steps) == 0
        self.steps.append((count, number))
        self.now += 100.0 if warm else cost[number] if isinstance(cost, list) else cost


@pytest.fixture(autouse=True)
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def choose(machine: Machine, total: int = 1000, **more: Callable[[], bool]) -> ThreadChoice:
    return choose_threads(machine.step, total, machine.clock, **more)


@pytest.mark.parametrize(("one", "most", "best"), [(0.01, 0.012, 1), (0.012, 0.01, 2), (0.01, 0.01, 1)])
def test_the_faster_is_kept_and_both_are_reported(one: float, most: float, best: int) -> None:
    choice = choose(Machine(one, most))
    assert choice.threads == best
    uses = "1 thread" if best == 1 else "2 threads"
    told = f"a step takes {one * 1000:g} ms with 1 thread and {most * 1000:g} ms with 2 threads"
    assert str(choice) == f"training uses {uses}: {told}"


def test_steps_are_timed_in_turn_on_the_same_batches_after_one_untimed_step() -> None:
    choose(machine := Machine(0.01, 0.012))
    assert machine.steps[0] == (2, 0)
    assert machine.steps[1:] == [(count, number) for number in range(MAX_ROUNDS) for count in (2, 1)]


def test_long_steps_are_timed_less_often() -> None:
    choose(machine := Machine(0.5, 0.6))
    assert len(machine.steps) == 1 + 2 * ROUNDS


def test_one_slow_round_decides_nothing() -> None:
    machine = Machine([0.010] * MAX_ROUNDS, [0.008, 0.9, *[0.008] * (MAX_ROUNDS - 2)])
    assert choose(machine).threads == 2


def test_a_clear_difference_needs_one_round() -> None:
    choice = choose(machine := Machine(0.5, 0.1))
    assert choice.threads == 2
    assert len(machine.steps) == 3


def test_slow_steps_are_not_compared() -> None:
    choice = choose(machine := Machine(9.0, 3.0))
    assert str(choice) == "training uses 2 threads: a step takes 3.0 s, too long to compare with 1 thread"
    assert [count for count, _ in machine.steps] == [2, 2]


def test_short_trainings_are_not_compared() -> None:
    choice = choose(machine := Machine(0.01, 0.02), total=10)
    assert str(choice) == "training uses 2 threads: 10 steps are too few to compare with 1 thread"
    assert not machine.steps


def test_one_processor_leaves_nothing_to_compare() -> None:
    torch.set_num_threads(1)
    choice = choose(machine := Machine(0.01, 0.01))
    assert str(choice) == "training uses 1 thread: no more are available"
    assert not machine.steps


def test_a_signal_ends_the_comparison() -> None:
    choice = choose(Machine(0.01, 0.02), stopped=lambda: True)
    assert str(choice) == "training uses 2 threads: the comparison was stopped"


# --- in the loop ------------------------------------------------------------------------------------------------


def fix_choice(monkeypatch: pytest.MonkeyPatch, best: int) -> None:
    """The clock of a machine on which `best` threads are the faster."""
    now = [0.0]

    def clock() -> float:
        now[0] += 0.001 if torch.get_num_threads() == best else 0.002
        return now[0]

    monkeypatch.setattr(threads, "MIN_STEPS", 12)
    given = training_toy.context
    monkeypatch.setattr(training_toy, "context", lambda folder, **more: given(folder, **{"clock": clock, **more}))


@pytest.mark.parametrize("best", [1, 2])
def test_a_training_is_the_one_with_the_number_that_is_chosen(
    best: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    torch.set_num_threads(best)
    _, plain = run(tmp_path / "plain", plan=STEPS)
    torch.set_num_threads(2)
    fix_choice(monkeypatch, best)
    seen: set[int] = set()
    source = Source(hooks={number: lambda: seen.add(torch.get_num_threads()) for number in range(MAX_ROUNDS, 12)})
    _, chosen = run(tmp_path / "auto", plan=STEPS, threads="auto", say=said.append, source=source)
    assert seen == {best}
    assert weights_print(chosen) == weights_print(plain)
    assert prints(tmp_path / "auto") == prints(tmp_path / "plain")
    assert said[0].startswith(f"training uses {'1 thread' if best == 1 else '2 threads'}: a step takes ")
    assert torch.get_num_threads() == 2, "what comes after training is measured as always"


def record(folder: Path) -> dict[str, object]:
    newest = max((folder / "checkpoints").glob("step-*"), key=lambda path: path.name)
    return json.loads((newest / "state.json").read_text())


@pytest.mark.parametrize("again", ["auto", None])
def test_a_resumed_run_keeps_the_number(again: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    fix_choice(monkeypatch, 1)
    run(whole, plan=STEPS, threads="auto")
    flag, said = Flag(), []
    source = Source(hooks={10: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Exception, match="the state is saved"):
        run(stopped, plan=STEPS, threads="auto", source=source, stop=flag)
    assert record(stopped)["chosen_threads"] == 1
    fix_choice(monkeypatch, 2)  # the machine has changed its mind
    seen: set[int] = set()
    source = Source(hooks={11: lambda: seen.add(torch.get_num_threads())})
    log = Log()
    result, _ = run(stopped, plan=STEPS, threads=again, resume=True, source=source, say=said.append, log=log)
    assert seen == {1}
    assert said == ["training goes on with 1 thread, as it began"]
    assert not result.notes
    assert prints(stopped) == prints(whole)


def test_a_number_takes_precedence_over_the_recorded_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_choice(monkeypatch, 1)
    flag = Flag()
    source = Source(hooks={10: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Exception, match="the state is saved"):
        run(tmp_path, plan=STEPS, threads="auto", source=source, stop=flag)
    result, _ = run(tmp_path, plan=STEPS, threads=2, resume=True)
    assert result.notes == ["not bit-exact: threads 1 → 2"]
    assert "chosen_threads" not in record(tmp_path)


def test_a_run_that_began_without_auto_keeps_its_number(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    flag = Flag()
    source = Source(hooks={10: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Exception, match="the state is saved"):
        run(tmp_path, plan=STEPS, source=source, stop=flag)
    torch.set_num_threads(2)
    result, _ = run(tmp_path, plan=STEPS, threads="auto", resume=True)
    assert not result.notes


def test_the_plan_may_ask_for_it_and_the_number_is_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_choice(monkeypatch, 1)
    logged: dict[str, object] = {}
    monkeypatch.setattr(Log, "params", lambda self, values: logged.update(values))
    run(tmp_path, plan={**STEPS, "threads": "auto"})
    assert logged == {"training.threads": 1}


def test_several_processes_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"TORCHELASTIC_RUN_ID": "x", "RANK": 0, "WORLD_SIZE": 2, "LOCAL_RANK": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert ranks().world == 2
    with pytest.raises(UserError) as caught:
        run(tmp_path, plan=STEPS, threads="auto")
    assert str(caught.value) == (
        "training.threads: auto does not support several processes; give the number of threads of each process, "
        "such as 1"
    )
