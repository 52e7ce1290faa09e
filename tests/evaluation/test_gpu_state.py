"""What the driver says of a GPU, by a stub of nvidia-ml-py."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from compress.training.memory import forget_peak, read_gpu
from evaluation.cost.gpu import read_state, read_system_metrics


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    made = SimpleNamespace(
        NVMLError=RuntimeError,
        NVML_CLOCK_SM=1,
        nvmlInit=lambda: None,
        nvmlDeviceGetHandleByUUID=lambda uuid: {"GPU-abc": "card"}[uuid],
        nvmlDeviceGetClockInfo=lambda card, kind: 1980,
        nvmlDeviceGetPowerUsage=lambda card: 350_000,
        nvmlDeviceGetComputeRunningProcesses=lambda card: [1, 2],
        nvmlDeviceGetUtilizationRates=lambda card: SimpleNamespace(gpu=97),
        nvmlDeviceGetMemoryInfo=lambda card: SimpleNamespace(used=5_000_000_000),
    )
    monkeypatch.setitem(sys.modules, "pynvml", made)  # type: ignore[arg-type]
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="abc"))
    return made


SYSTEM = {
    "system/gpu_0_utilization_percentage": 97,
    "system/gpu_0_memory_usage_megabytes": 5000,
    "system/gpu_0_power_usage_watts": 350,
}


def test_what_is_recorded_beside_a_figure(driver: SimpleNamespace) -> None:
    assert read_state() == {"sm_clock_mhz": 1980, "power_w": 350, "processes": 2}
    assert read_system_metrics() == SYSTEM


def test_a_driver_that_does_not_answer_says_nothing(driver: SimpleNamespace) -> None:
    def fail() -> None:
        raise driver.NVMLError("no")

    driver.nvmlInit = fail
    assert read_state() == read_system_metrics() == {}


def test_without_the_package_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)  # type: ignore[arg-type]
    assert read_state() == read_system_metrics() == {}


def test_what_the_log_of_a_training_gets(driver: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 7_000_000)
    assert read_gpu(torch.device("cuda", 0)) == {"train/peak_memory_mb": 7, **SYSTEM}
    assert read_gpu(torch.device("cpu")) == {}


def test_the_peak_of_a_gpu_counts_from_where_a_training_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[torch.device] = []
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", asked.append)
    for device in (torch.device("cpu"), torch.device("cuda", 0)):
        forget_peak(device)
    assert asked == [torch.device("cuda", 0)]
