"""Steps that a thread prepares: the same rows, bits and errors as without it, and no thread that outlives a run."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from training_toy import Flag, Source, Told, prints, run

from compress.errors import Stopped, UserError
from compress.training import loop
from compress.training.prefetch import AHEAD, Prefetch

ELSEWHERE = torch.device("meta")  # any device but a CPU has the thread


@dataclass
class Counted(Source):
    """Remembers which steps were asked for, in order."""

    def __post_init__(self) -> None:
        self.asked: list[tuple[int, int]] = []

    def step(self, epoch: int, index: int) -> list[Any]:
        self.asked.append((epoch, index))
        return super().step(epoch, index)


@pytest.fixture
def ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on the CPU prepare steps as those on a GPU do."""
    monkeypatch.setattr(loop, "Prefetch", lambda source, device: Prefetch(source, ELSEWHERE))


def count_threads() -> int:
    return sum(thread.name.startswith("prefetch") for thread in threading.enumerate())


def stop_after(step: int, folder: Path, source: Source) -> None:
    flag = Flag()

    class Stopping(Told):
        def update(self, done: int, **figures: float | str) -> None:
            flag.requested = "SIGTERM" if done == step else flag.requested

    with pytest.raises(Stopped, match=f"after step {step} of 12"):
        run(folder, stop=flag, source=source, progress=Stopping())


def test_a_run_has_the_same_bits_and_so_has_one_that_was_stopped(tmp_path: Path, monkeypatch: Any) -> None:
    _, module = run(tmp_path / "in line")
    expected = prints(tmp_path / "in line", module)
    monkeypatch.setattr(loop, "Prefetch", lambda source, device: Prefetch(source, ELSEWHERE))
    source = Counted()
    _, module = run(tmp_path / "ahead", source=source)
    assert prints(tmp_path / "ahead", module) == expected
    assert source.asked == [(n // 5, n % 5) for n in range(12)], "each step once, in order, none after the last"
    stop_after(7, tmp_path / "stopped", Source())
    _, module = run(tmp_path / "stopped", resume=True)
    assert prints(tmp_path / "stopped", module) == expected
    assert count_threads() == 0


def test_an_error_is_raised_at_its_step(ahead: None, tmp_path: Path) -> None:
    def fail() -> None:
        raise UserError("row 7 is broken")

    told = Told()
    with pytest.raises(UserError, match="row 7 is broken") as caught:
        run(tmp_path, source=Source(hooks={8: fail}), progress=told)
    assert [done for done, _ in told.updates] == list(range(1, 9))
    assert any(frame.name == "fail" for frame in caught.traceback), "it says where"
    assert count_threads() == 0


def test_what_follows_is_prepared_and_nothing_else() -> None:
    source = Counted()
    made = Prefetch(source, ELSEWHERE)
    (first, _) = made.step(0, 1, left=9)
    assert first.parcel is not None
    made.settle()
    assert source.asked == [(0, 1), (0, 2), (0, 3)]
    assert len(source.asked) == 1 + AHEAD
    made.step(0, 2, left=1)
    made.settle()
    assert source.asked[-1] == (0, 3), "one step is left"
    made.step(0, 0)  # as after a run was set back
    assert source.asked[-1] == (0, 0)
    assert made.steps(0) == 5
    made.step(0, 4, left=9)
    made.settle()
    assert source.asked[-1] == (0, 4), "the epoch ends"
    made.close()
    assert count_threads() == 0


def test_a_cpu_has_no_thread() -> None:
    made = Prefetch(Counted(), torch.device("cpu"))
    assert all(batch.parcel is None for batch in made.step(0, 0, left=9))
    assert count_threads() == 0
    made.close()
