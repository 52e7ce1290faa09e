"""Checkpoints that a thread writes: the same bytes, while training goes on; here on the CPU, where none does by itself.

tests/simcuda/checks.py has the copies of a GPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from training_toy import Flag, Server, Source, prints, run, weights_print, without_weights

from compress.errors import ExitCode, Stopped, UserError
from compress.storage import atomic, faults
from compress.training import keeper
from compress.training.staging import Staging

LONG = 60.0
"""Seconds until a test gives up on the other thread."""


@pytest.fixture
def background(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "writes_in_background", lambda device: True)


def list_writers() -> list[str]:
    """Threads that write checkpoints."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("checkpoint")]


def test_only_a_gpu_writes_in_the_background() -> None:
    assert keeper.writes_in_background(torch.device("cuda", 0))
    assert not keeper.writes_in_background(torch.device("cpu"))


@pytest.mark.usefixtures("background")
def test_the_bytes_are_those_of_the_same_thread(tmp_path: Path, whole: dict[str, str]) -> None:
    flag = Flag()
    source = Source(hooks={6: lambda: setattr(flag, "requested", "SIGTERM")})
    with pytest.raises(Stopped, match="stopped by SIGTERM after step 7 of 12; the state is saved"):
        run(tmp_path, stop=flag, source=source)
    assert not list_writers()
    _, module = run(tmp_path, resume=True)
    assert prints(tmp_path, module) == whole


def test_memory_that_cannot_be_pinned_is_ordinary(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container that limits locked memory: slower, but whole. In a torch without CUDA none can be pinned."""
    stream: Any = SimpleNamespace(wait_stream=lambda other: None, record_event=lambda: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch.cuda, "stream", contextlib.nullcontext)
    allocate, asked = torch.empty, []

    def refuse(*sizes: Any, pin_memory: bool = False, **how: Any) -> torch.Tensor:
        asked.append(pin_memory)
        if pin_memory:
            raise RuntimeError("CUDA error: out of memory")
        return allocate(*sizes, **how)

    monkeypatch.setattr(torch, "empty", refuse)
    x = torch.arange(3.0)
    found = Staging(torch.device("cuda", 0)).copy({"rng": {"x": x}}, {"model": {"x": x + 1}}).wait()
    assert {name: tensors["x"].tolist() for name, tensors in found.items()} == {"rng": [0, 1, 2], "model": [1, 2, 3]}
    assert asked == [True, False, False]


class Gate:
    """Holds back the first write of a checkpoint's file until it is opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._opened, self._write = threading.Event(), atomic.write_safetensors
        self.waited: list[bool] = []
        monkeypatch.setattr(atomic, "write_safetensors", self)

    def __call__(self, *arguments: Any, **options: Any) -> None:
        self.waited.append(self._opened.wait(LONG))
        self._write(*arguments, **options)

    def open(self) -> None:
        """From now on nothing is held back."""
        assert not self.waited or self.waited[0]
        self._opened.set()


@pytest.mark.usefixtures("background")
def test_steps_go_on_while_a_checkpoint_is_written(
    tmp_path: Path, whole: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint of step 3 is held back until the sixth step: it holds the state of step 3."""
    run(tmp_path / "short", plan={"steps": 3, "schedule": "constant", "warmup": 0.0})
    gate = Gate(monkeypatch)
    folder = tmp_path / "held"
    seen: list[bool] = []

    def look() -> None:
        seen.append((folder / "checkpoints/step-00000003").exists())
        gate.open()

    flag = Flag()
    hooks: dict[int, Callable[[], None]] = {5: look, 6: lambda: setattr(flag, "requested", "SIGTERM")}
    plan = {"schedule": "constant", "warmup": 0.0, "keep_checkpoints": 5}
    with pytest.raises(Stopped):
        run(folder, source=Source(hooks=hooks), stop=flag, plan=plan)
    assert seen == [False]
    for name in ("model", "optimizer", "rng"):
        files = [tmp_path / run_ / f"checkpoints/step-00000003/{name}.safetensors" for run_ in ("short", "held")]
        assert files[0].read_bytes() == files[1].read_bytes(), name


@pytest.mark.usefixtures("background")
def test_a_disk_that_fails_once_is_tried_again(
    tmp_path: Path, whole: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with faults.arm_fault("checkpoint.after_files", "enospc", nth=2):
        _, module = run(tmp_path)
    assert "checkpoint at step 6 failed, trying again later" in caplog.text
    assert prints(tmp_path, module) == whole


@pytest.mark.usefixtures("background")
def test_what_the_thread_raises_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with faults.arm_fault("checkpoint.after_files", "raise"), pytest.raises(faults.InjectedFault):
        run(tmp_path / "bug")

    def refuse(*_: Any, **__: Any) -> None:
        raise UserError("the disk is full", do="free some space") from OSError(28, "x")

    monkeypatch.setattr(atomic, "write_safetensors", refuse)
    with pytest.raises(UserError, match="3 checkpoints in a row failed") as error:
        run(tmp_path / "full")
    assert error.value.code == ExitCode.RESOURCES
    assert not list_writers()


@pytest.mark.usefixtures("background")
def test_an_error_of_a_step_waits_for_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    def fail() -> None:
        gate.open()
        raise ValueError("of the step")

    with pytest.raises(ValueError, match="of the step"):
        run(tmp_path, source=Source(hooks={4: fail}))
    assert not atomic.verify_folder(tmp_path / "checkpoints/step-00000003")


@pytest.mark.usefixtures("background")
def test_best_weights_wait_in_memory_for_the_next_checkpoint(tmp_path: Path) -> None:
    """Between two checkpoints nothing is written."""
    plan = {"checkpoint_every": 100, "validate_every": 2}
    with faults.record_points() as hits:
        result, module = run(tmp_path, plan=plan)
    assert result.best_step == 4
    assert [name for name, _ in hits if name.startswith("checkpoint.")][:2] == [
        "checkpoint.after_best",
        "checkpoint.after_files",
    ]
    _, same = run(tmp_path, plan=plan, resume=True)
    assert weights_print(same) == weights_print(module)


@pytest.mark.thorough
def test_killed_while_a_checkpoint_is_written(server: Server, tmp_path: Path, whole: dict[str, str]) -> None:
    for number, fault in enumerate(("checkpoint.after_files:2", "checkpoint.after_best:2", "folder.after_rename:3")):
        folder = str(tmp_path / str(number))
        code, said = server.ask(folder=folder, fault=f"{fault}:kill", background=True)
        assert code == -9, (fault, said)
        code, said = server.ask(folder=folder, resume=True, background=True)
        assert code == 0, (fault, said)
        assert prints(Path(folder)) == without_weights(whole), fault
