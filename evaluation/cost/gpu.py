"""Times, waits and state of a CUDA device: what wall time and the processor's share cannot show of a GPU."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

from evaluation.cost.roofline import Ceilings

Call = Callable[[int], Any]
"""Takes the number of the round, so that each may have other data."""
LAUNCHES = 30
ROUNDS = 4
"""Turns of all calls: clocks and neighbours are then the same for all."""


@dataclass(frozen=True)
class GpuTime:
    """Medians in ms. device: by events, from the first kernel to the end of the last.  host: until the call returned.
    spread: of the turns' medians, over their median."""

    device: float
    host: float
    spread: float


def time_in_turns(calls: Mapping[str, Call], rounds: int, *, warmup: int = 3) -> dict[str, GpuTime]:
    """Time each call `rounds` times in all, in `ROUNDS` turns; a synchronization comes before each."""
    for call in calls.values():
        for number in range(warmup):
            call(number)
    torch.cuda.synchronize()
    turns: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            found = [_time(call, number) for number in range(max(1, rounds // ROUNDS))]
            turns[name].append((statistics.median(d for d, _ in found), statistics.median(h for _, h in found)))
    return {name: _summarize(found) for name, found in turns.items()}


def _time(call: Call, number: int) -> tuple[float, float]:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    started = time.perf_counter()
    call(number)
    host = 1e3 * (time.perf_counter() - started)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end), host


def _summarize(found: Sequence[tuple[float, float]]) -> GpuTime:
    device = [d for d, _ in found]
    middle = statistics.median(device)
    spread = (max(device) - min(device)) / middle if middle else 0.0
    return GpuTime(middle, statistics.median(h for _, h in found), spread)


def count_waits(call: Call) -> int:
    """How often the host waits for the device in one call. Other warnings than torch's of this are passed on."""
    torch.cuda.synchronize()
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        try:
            call(0)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    for one in seen:
        if not any(words in str(one.message) for words in (_WAITED, _PROTOTYPE)):
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno, source=one.source)
    return sum(_WAITED in str(one.message) for one in seen)


_WAITED, _PROTOTYPE = "synchronizing CUDA operation", "Synchronization debug mode"
"""In torch's warnings: of a wait, and once in a process, that not all waits are found."""


def measure_products(size: int, dtype: torch.dtype, device: str | torch.device = "cuda") -> float:
    """Floating-point operations a second of a product of two (size, size) matrices.

    Their numbers differ, and in many bits: a product of equal ones takes less power, and may run at a higher clock.
    """
    numbers = torch.arange(size * size, device=device, dtype=torch.float32).view(size, size)
    a, b = numbers.sin().to(dtype), numbers.cos().to(dtype)
    del numbers
    found = time_in_turns({"product": lambda _: a @ b}, 12)["product"]
    return 2.0 * size**3 / (found.device / 1e3)


def measure_ceilings(size: int, elements: int, device: str = "cuda") -> Ceilings:
    """Of this device: `measure_products` in bf16, a copy of so many bf16 numbers, and the host's time for one of a
    small product, a norm and an addition: a launch of additions alone would take half of it."""
    x, y = (torch.randn(elements, device=device, dtype=torch.bfloat16) for _ in range(2))
    small, bias = torch.randn(64, 64, device=device, dtype=torch.bfloat16), torch.zeros(64, device=device).bfloat16()

    def launch(number: int) -> None:
        for _ in range(LAUNCHES):
            F.layer_norm(F.linear(small, small, bias) + small, (64,))

    found = time_in_turns({"copy": lambda _: y.copy_(x), "launch": launch}, 12)
    return Ceilings(
        flops=measure_products(size, torch.bfloat16, device),
        bytes=4.0 * elements / (found["copy"].device / 1e3),
        launch=found["launch"].host / 1e3 / (3 * LAUNCHES),
    )


def read_state(device: str | torch.device = "cuda") -> dict[str, float]:
    """SM clock (MHz), power (W) and number of processes that compute; empty without nvidia-ml-py."""
    return _ask_driver(
        device,
        lambda nvml, card: {
            "sm_clock_mhz": nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM),
            "power_w": nvml.nvmlDeviceGetPowerUsage(card) / 1000,
            "processes": len(nvml.nvmlDeviceGetComputeRunningProcesses(card)),
        },
    )


def read_system_metrics(device: str | torch.device = "cuda") -> dict[str, float]:
    """Load, memory and power of the card, by the names of MLflow's system metrics; empty without nvidia-ml-py."""
    return _ask_driver(
        device,
        lambda nvml, card: {
            "system/gpu_0_utilization_percentage": nvml.nvmlDeviceGetUtilizationRates(card).gpu,
            "system/gpu_0_memory_usage_megabytes": nvml.nvmlDeviceGetMemoryInfo(card).used / 1e6,
            "system/gpu_0_power_usage_watts": nvml.nvmlDeviceGetPowerUsage(card) / 1000,
        },
    )


def _ask_driver(device: str | torch.device, ask: Callable[[Any, Any], dict[str, float]]) -> dict[str, float]:
    """ask: takes the module pynvml and the handle of the card."""
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return {}
    try:
        pynvml.nvmlInit()
        return ask(pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device).uuid}"))
    except (pynvml.NVMLError, AttributeError):
        return {}
