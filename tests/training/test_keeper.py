"""What is saved and when, and what happens when the disk refuses: counted by steps, not by files."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from compress.contracts import TrainingPlan
from compress.errors import ExitCode, UserError
from compress.storage import atomic
from compress.training.keeper import Keeper, NullMonitor
from compress.training.optimizer import Optimizer
from compress.training.state import TrainState

IDENTITY = {"data": "a" * 64, "recipe": "b" * 64}


def new_state(value: float = 0.0) -> TrainState:
    module = nn.Linear(2, 1, bias=False)
    nn.init.constant_(module.weight, value)
    plan = TrainingPlan(steps=9, learning_rate=0.1)
    return TrainState(module, Optimizer(module, plan), torch.device("cpu"))


def keeper_of(folder: Path, state: TrainState | None = None, **changes: Mapping[str, str]) -> Keeper:
    given: dict[str, Mapping[str, str]] = {"identity": IDENTITY, "environment": {"threads": "1", "torch": "2"}}
    return Keeper(folder, 2, new_state() if state is None else state, **(given | changes))


def weight_of(keeper: Keeper) -> Tensor:
    return keeper.state.module.get_parameter("weight")


def started(folder: Path) -> Keeper:
    made = keeper_of(folder)
    made.start(resume=False)
    return made


class Disk:
    """Refuses to write while it is full."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, number: int = errno.ENOSPC) -> None:
        self.full, self.tries, self._number, self._write = False, 0, number, atomic.write_safetensors
        monkeypatch.setattr(atomic, "write_safetensors", self)

    def __call__(self, path: Path, tensors: Mapping[str, Tensor], metadata: Any = None) -> None:
        self.tries += 1
        if self.full:
            raise UserError("the disk is full", do="free some space") from OSError(self._number, "x")
        self._write(path, tensors, metadata)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "checkpoints").iterdir())


def test_a_moment_is_saved_once(tmp_path: Path) -> None:
    keeper = started(tmp_path)
    assert keeper.last is None
    keeper.state.step = 3
    assert keeper.save()
    assert keeper.save()
    assert names(tmp_path) == ["step-00000003"]
    keeper.state.validated = 3  # the same step, with more known of it
    assert keeper.save()
    assert keeper.last is not None
    assert keeper.last.name == "step-00000003-1"


def test_the_best_weights_come_back(tmp_path: Path) -> None:
    keeper = started(tmp_path)
    weight = weight_of(keeper)
    keeper.restore_best()  # without any there is nothing to do
    keeper.state.step = 1
    keeper.offer_best({"f1": 0.5}, 0.5)
    nn.init.constant_(weight, 7.0)
    keeper.restore_best()
    assert weight.tolist() == [[0.0, 0.0]]


def test_the_best_weights_come_back_from_memory_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, keeper = Disk(monkeypatch), started(tmp_path)
    disk.full, keeper.state.step = True, 1
    keeper.offer_best({"f1": 0.5}, 0.5)
    nn.init.constant_(weight_of(keeper), 7.0)
    keeper.restore_best()
    assert weight_of(keeper).tolist() == [[0.0, 0.0]]


def test_a_step_whose_best_and_checkpoint_fail_is_one_miss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are written at one step. Counted twice, a disk that is full for two saves in a row would end the run, as if
    it were three."""
    disk, keeper = Disk(monkeypatch), started(tmp_path)
    disk.full = True
    for step in (1, 2):
        keeper.state.step = keeper.state.validated = step
        keeper.offer_best({"f1": step}, step)
        assert not keeper.save()
    disk.full = False
    keeper.state.step = 3
    assert keeper.save()
    assert names(tmp_path) == ["best-00000002", "step-00000003"], "the best is written with the next checkpoint"
    disk.full = True
    for step in (4, 5):
        keeper.state.step = step
        assert not keeper.save(), "a save that succeeds begins the count anew"
    keeper.state.step = 6
    with pytest.raises(UserError, match="3 checkpoints in a row failed") as error:
        keeper.save()
    assert error.value.code == ExitCode.RESOURCES
    assert error.value.line().endswith("free some space, then use --resume")


def test_without_any_checkpoint_nothing_is_said_of_resuming(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk, keeper = Disk(monkeypatch), started(tmp_path)
    disk.full = True
    for keeper.state.step in (1, 2):
        assert not keeper.save()
    keeper.state.step = 3
    with pytest.raises(UserError, match="3 checkpoints in a row failed") as error:
        keeper.save()
    assert "--resume" not in error.value.line()


def test_an_error_that_is_not_the_disks_is_not_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keeper = started(tmp_path)

    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("a tensor cannot be stored")

    monkeypatch.setattr(atomic, "write_safetensors", refuse)
    keeper.state.step = 1
    with pytest.raises(UserError, match=r"^a tensor cannot be stored$"):
        keeper.save()


def saved(folder: Path) -> Path:
    keeper = started(folder)
    keeper.state.step = 2
    keeper.save()
    return folder


def test_checkpoints_of_another_run_are_not_touched(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UserError, match="contains checkpoints of an earlier run") as error:
        keeper_of(tmp_path).start(resume=False)
    assert error.value.code == ExitCode.REFUSED
    changed = {"data": "a" * 16 + "c" * 48, "teacher": "x"}
    with pytest.raises(UserError, match="the saved run has different settings") as error:
        keeper_of(tmp_path, identity=changed).start(resume=True)
    why = error.value.why
    assert why is not None
    assert why.split(", ")[1:] == ["recipe bbbbbbbbbbbbbbbb… → (none)", "teacher (none) → x"]


def test_two_long_settings_that_begin_alike_are_told_apart(tmp_path: Path) -> None:
    saved(tmp_path)
    with pytest.raises(UserError) as error:
        keeper_of(tmp_path, identity={**IDENTITY, "data": "a" * 63 + "b"}).start(resume=True)
    assert error.value.why is not None
    before, _, now = error.value.why.removeprefix("data ").partition(" → ")
    assert before != now


def test_another_machine_is_told_and_does_not_hinder(tmp_path: Path) -> None:
    saved(tmp_path)
    keeper = keeper_of(tmp_path, environment={"threads": "1", "torch": "3"})
    assert keeper.start(resume=True) == ["not bit-exact: torch 2 → 3"]
    assert keeper.state.step == 2
    assert keeper_of(tmp_path).start(resume=True) == []


@pytest.mark.parametrize(
    ("requested", "chosen", "used"),
    [(None, 4, "4"), ("auto", 4, "4"), ("auto", None, "1"), (2, 4, "2"), (None, None, "2")],
)
def test_a_resumed_run_keeps_the_threads_that_were_chosen(
    requested: Any, chosen: int | None, used: str, tmp_path: Path
) -> None:
    first = started(tmp_path)
    if chosen is not None:
        first.set_threads(chosen)
    first.state.step = 2
    first.save()
    keeper = keeper_of(tmp_path, environment={"threads": "2", "torch": "2"})
    keeper.requested_threads = requested
    keeper.start(resume=True)
    assert keeper.environment["threads"] == used


def test_resuming_nothing_starts_at_the_beginning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert keeper_of(tmp_path).start(resume=True) == []
    assert "nothing to resume" in caplog.text


def test_the_other_processes_judge_and_write_nothing(tmp_path: Path) -> None:
    state = dataclasses.replace(new_state(), step=4)
    monitor = NullMonitor(state)
    assert monitor.start(resume=True) == []
    assert monitor.save()
    monitor.offer_best({"f1": 0.5}, 0.5)
    assert state.best is not None
    assert (state.best.step, state.best.value) == (4, 0.5)
    assert not list(tmp_path.iterdir())
