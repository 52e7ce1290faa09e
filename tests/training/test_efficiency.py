"""What training takes of its device: energy by a counter that stands in, and where there is an MFU."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from training_toy import Log, Source, run, toy_module

from compress.training import efficiency, loop
from compress.training.efficiency import Efficiency
from compress.training.meter import Meter
from evaluation.cost.energy import Counters

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


class Joules:
    """A counter that others advance."""

    name, range = "stand-in", None
    used = 0.0

    def read(self) -> float:
        return self.used


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Joules:
    made = Joules()
    monkeypatch.setattr(efficiency.energy, "find_counters", lambda device: Counters((made,)))
    return made


def test_energy_of_steps_without_that_of_validations(counter: Joules, tmp_path: Path) -> None:
    def use(joules: float) -> None:
        counter.used += joules

    def validate(module: nn.Module) -> dict[str, float]:
        use(1000.0)
        return {"early": 1.0}

    log, source = Log(), Source(hooks={number: lambda: use(2.0) for number in range(12)})
    run(tmp_path, log=log, source=source, validate=validate, plan={"log_every": 4})
    told = [values for _, values in log.lines if "train/loss" in values]
    assert [values["train/joules_per_1000_rows"] for values in told] == [500.0] * 3, "2 J for 4 rows"
    assert log.lines[-1] == (None, {"energy/training_joules": 24.0})


def test_waiting_for_figures_is_time_of_the_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a validation and a checkpoint too: on a GPU, steps are computed then."""
    seconds = [0.0]

    class SlowMeter(Meter):
        def drain(self, last_checkpoint: str | None) -> None:
            seconds[0] += 1.0
            super().drain(last_checkpoint)

    monkeypatch.setattr(loop, "Meter", SlowMeter)
    monkeypatch.setattr(loop, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    result, _ = run(tmp_path)
    assert result.seconds == seconds[0] > result.steps


def test_counters_of_a_cpu_that_others_use_too_are_not_read(counter: Joules) -> None:
    def is_read(device: torch.device, *, is_alone: bool) -> bool:
        meter = Efficiency(nn.Linear(1, 1), device, "fp32", is_alone=is_alone).energy
        meter.start()
        return meter.take() is not None

    assert is_read(CPU, is_alone=True)
    assert not is_read(CPU, is_alone=False)
    assert is_read(GPU, is_alone=False), "each process has its own"


def test_the_peak_is_measured_where_there_is_an_mfu(counter: Joules, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(efficiency, "measure_peak", lambda *what: asked.append(what) or 1e12)
    frozen = toy_module()
    next(weight for weight in frozen.student.parameters() if weight.dim() == 2).requires_grad_(False)
    for module, device in ((toy_module(), CPU), (frozen, GPU), (nn.Linear(1, 1), GPU)):
        assert Efficiency(module, device, "fp32", is_alone=True).peak is None
    assert asked == []
    assert Efficiency(toy_module(), GPU, "bf16", is_alone=True).peak == 1e12
    assert asked == [(GPU, "bf16")]


def test_matrices_that_do_not_fit_are_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(size: int, dtype: torch.dtype, device: torch.device) -> float:
        raise RuntimeError("CUDA out of memory. Tried to allocate 1 GiB")

    monkeypatch.setattr(efficiency.gpu, "measure_products", fail)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    assert efficiency.measure_peak(torch.device("cuda", 7), "bf16") is None
