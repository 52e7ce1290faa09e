"""Energy that calls take, from the counters of the machine: RAPL of the processor and its memory, NVML of a GPU.

The counters are those of the whole package or card: idle power and other programs count. Where none can be read,
nothing is known. RAPL (Linux' powercap) exists on most Intel and AMD processors, seldom in virtual machines, and its
files can often be read by root alone. NVML needs the package nvidia-ml-py and a card from Volta on.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch

POWERCAP = Path("/sys/class/powercap")
SECONDS = 2.0
"""Least time that is measured: counters advance every 1 to 100 ms."""


class Counter(Protocol):
    """Counts joules from some moment on. range: joules after which it begins anew; None: it does not."""

    @property
    def name(self) -> str: ...

    @property
    def range(self) -> float | None: ...

    def read(self) -> float: ...


@dataclass(frozen=True)
class RaplCounter:
    """One zone of powercap. range: the largest value of the file, after which it begins at 0."""

    name: str
    file: Path
    range: float | None

    def read(self) -> float:
        """Joules. Raises OSError where the file cannot be read, ValueError where it holds no number."""
        return int(self.file.read_text()) / 1e6


@dataclass(frozen=True)
class NvmlCounter:
    """The total energy of a card since the driver was loaded."""

    name: str
    handle: Any
    range: float | None = None

    def read(self) -> float:
        """Joules. Raises OSError where the driver does not tell."""
        import pynvml  # pyright: ignore[reportMissingImports]

        try:
            return pynvml.nvmlDeviceGetTotalEnergyConsumption(self.handle) / 1000
        except pynvml.NVMLError as error:
            raise OSError(f"the GPU reports no energy: {error}") from error


@dataclass(frozen=True)
class Counters:
    """The counters of a device that can be read. why: why there are none."""

    found: tuple[Counter, ...]
    why: str = ""

    @property
    def names(self) -> str:
        """`package-0, dram`."""
        return ", ".join(counter.name for counter in self.found)


def find_counters(device: str = "cpu", folder: Path | None = None) -> Counters:
    """Of the processor and its memory, or of a CUDA device. folder: of powercap, None for the machine's own."""
    return _nvml(device) if device.startswith("cuda") else _rapl(POWERCAP if folder is None else folder)


def subtract(before: float, after: float, span: float | None) -> float:
    """Joules between two readings of a counter, which has begun anew at most once in between."""
    if after < before and span is not None:
        return after - before + span
    return after - before


def measure_energy(
    call: Callable[[], Any],
    counters: Sequence[Counter],
    *,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> float | None:
    """Joules of one call, the mean over as many as take `seconds`; None where no counter moves or one fails.

    The call must wait for its device. Twice `seconds` must not use up the range of a counter: RAPL's lasts minutes.
    """
    if not counters:
        return None
    try:
        before = [counter.read() for counter in counters]
        begin, calls = clock(), 0
        while calls == 0 or clock() - begin < seconds:
            call()
            calls += 1
        after = [counter.read() for counter in counters]
    except (OSError, ValueError):
        return None
    total = sum(subtract(a, b, c.range) for a, b, c in zip(before, after, counters, strict=True))
    return total / calls if total > 0 else None


class EnergyMeter:
    """Joules of stretches of time. Where there are no counters, or one fails, nothing is known."""

    def __init__(self, counters: Sequence[Counter]) -> None:
        self._counters = tuple(counters)
        self._before: list[float] | None = None

    def start(self) -> None:
        """What was used until now does not count."""
        self._before = self._read()

    def take(self) -> float | None:
        """Joules since `start`, or since this was called last. In between, a counter may begin anew once."""
        before, after = self._before, self._read()
        self._before = after
        if before is None or after is None:
            return None
        return sum(subtract(a, b, c.range) for a, b, c in zip(before, after, self._counters, strict=True))

    def _read(self) -> list[float] | None:
        try:
            return [counter.read() for counter in self._counters] or None
        except (OSError, ValueError):
            return None


def _rapl(folder: Path) -> Counters:
    """Packages, and the memory beside them. Cores and graphics are parts of a package; psys holds everything twice."""
    zones = sorted(path for path in folder.glob("intel-rapl:*") if path.is_dir()) if folder.is_dir() else []
    if not zones:
        return Counters((), "the system reports no energy (no RAPL)")
    found: list[Counter] = []
    for zone in zones:
        try:
            name = (zone / "name").read_text().strip()
            if not name.startswith(("package", "dram")):
                continue
            span = int((zone / "max_energy_range_uj").read_text()) / 1e6
            counter = RaplCounter(name, zone / "energy_uj", span)
            counter.read()
        except PermissionError:
            return Counters((), f"{zone / 'energy_uj'} cannot be read: run as root, or make it readable")
        except (OSError, ValueError):
            continue
        found.append(counter)
    return Counters(tuple(found), "" if found else "RAPL has no counter that can be read")


def _nvml(device: str) -> Counters:
    try:
        import pynvml  # pyright: ignore[reportMissingImports]
    except ImportError:
        return Counters((), "nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        card = torch.cuda.get_device_properties(device)
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{card.uuid}")
        counter = NvmlCounter(card.name, handle)
        counter.read()
    except OSError as error:
        return Counters((), str(error))
    except (pynvml.NVMLError, AttributeError) as error:  # an old torch does not know the card's id
        return Counters((), f"the GPU reports no energy: {error}")
    return Counters((counter,))
