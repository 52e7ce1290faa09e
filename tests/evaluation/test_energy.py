"""Energy from counters: which are read, that one begins anew, and that nothing is said where nothing is known."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from evaluation.cost.energy import (
    Counters,
    EnergyMeter,
    NvmlCounter,
    RaplCounter,
    find_counters,
    measure_energy,
    subtract,
)


def add_zone(folder: Path, zone: str, name: str, uj: int, most: int = 262_143_328_850) -> Path:
    (folder / zone).mkdir(parents=True)
    for file, text in (("name", name), ("energy_uj", str(uj)), ("max_energy_range_uj", str(most))):
        (folder / zone / file).write_text(f"{text}\n")
    return folder / zone / "energy_uj"


@pytest.fixture
def powercap(tmp_path: Path) -> Path:
    """Two packages with memory, parts of the first, and what holds both."""
    folder = tmp_path / "powercap"
    for number in (0, 1):
        add_zone(folder, f"intel-rapl:{number}", f"package-{number}", 5_000_000)
        add_zone(folder, f"intel-rapl:{number}:1", "dram", 1_000_000)
    add_zone(folder, "intel-rapl:0:0", "core", 9_000_000)
    add_zone(folder, "intel-rapl:2", "psys", 9_000_000)
    (folder / "intel-rapl").mkdir()
    (folder / "dtpm").mkdir()
    return folder


def test_packages_and_memory_count_once(powercap: Path) -> None:
    found = find_counters("cpu", powercap)
    assert [c.name for c in found.found] == ["package-0", "dram", "package-1", "dram"]
    assert found.names == "package-0, dram, package-1, dram"
    assert sum(c.read() for c in found.found) == 12.0


def test_the_joules_of_a_call_are_the_mean_over_those_that_were_made(powercap: Path) -> None:
    file, ticks = powercap / "intel-rapl:0/energy_uj", itertools.count()

    def call() -> None:
        file.write_text(str(int(file.read_text()) + 3_000_000))

    found = find_counters("cpu", powercap).found
    assert measure_energy(call, found, seconds=4.5, clock=lambda: float(next(ticks))) == 3.0
    assert int(file.read_text()) == 5_000_000 + 5 * 3_000_000


def test_a_counter_that_begins_anew_loses_nothing(tmp_path: Path) -> None:
    file = add_zone(tmp_path, "intel-rapl:0", "package-0", 9_500_000, most=10_000_000)
    (counter,) = find_counters("cpu", tmp_path).found
    assert measure_energy(lambda: file.write_text("1500000"), [counter], seconds=0.0) == pytest.approx(2.0)
    assert subtract(9.5, 1.5, 10.0) == pytest.approx(2.0)
    assert subtract(1.0, 4.0, 10.0) == 3.0


def test_a_counter_that_stands_still_says_nothing(powercap: Path) -> None:
    assert measure_energy(lambda: None, find_counters("cpu", powercap).found, seconds=0.0) is None


def test_a_counter_that_vanishes_says_nothing(powercap: Path) -> None:
    found = find_counters("cpu", powercap).found
    assert measure_energy((powercap / "intel-rapl:1/energy_uj").unlink, found, seconds=0.0) is None


def test_without_counters_nothing_is_called(tmp_path: Path) -> None:
    found = find_counters("cpu", tmp_path / "none")
    assert (found.found, found.why) == ((), "the system reports no energy (no RAPL)")
    assert measure_energy(lambda: pytest.fail("called"), found.found) is None


def test_a_file_for_root_alone_is_named(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: RaplCounter) -> float:
        raise PermissionError

    monkeypatch.setattr(RaplCounter, "read", refuse)
    found = find_counters("cpu", powercap)
    assert found.found == ()
    assert found.why.endswith("intel-rapl:0/energy_uj cannot be read: run as root, or make it readable")


def test_a_zone_without_numbers_is_passed_over(powercap: Path) -> None:
    (powercap / "intel-rapl:1/energy_uj").write_text("unknown\n")
    (powercap / "intel-rapl:1:1/max_energy_range_uj").unlink()
    assert [c.name for c in find_counters("cpu", powercap).found] == ["package-0", "dram"]


def test_a_gpu_without_nvml_says_why() -> None:
    try:
        import pynvml  # noqa: F401
    except ImportError:
        assert find_counters("cuda") == Counters((), "nvidia-ml-py is not installed")


# --- stretches of time --------------------------------------------------------------------------------------------


def test_stretches_add_up_and_what_lies_between_does_not_count(tmp_path: Path) -> None:
    file = add_zone(tmp_path, "intel-rapl:0", "package-0", 1_000_000, most=10_000_000)
    meter = EnergyMeter(find_counters("cpu", tmp_path).found)
    assert meter.take() is None, "nobody knows since when"
    meter.start()
    file.write_text("4000000")
    assert meter.take() == pytest.approx(3.0)
    file.write_text("500000")
    assert meter.take() == pytest.approx(6.5), "the counter began anew"
    file.write_text("9000000")
    meter.start()
    assert meter.take() == 0.0
    file.unlink()
    assert meter.take() is None
    assert meter.take() is None


def test_without_counters_no_stretch_is_known() -> None:
    meter = EnergyMeter(())
    meter.start()
    assert meter.take() is None


def test_a_driver_that_fails_later_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    replies = iter([1000, 3000, None])

    def read(handle: str) -> int:
        if (reply := next(replies)) is None:
            raise NVMLError("lost")
        return reply

    class NVMLError(Exception):
        pass

    stub = SimpleNamespace(NVMLError=NVMLError, nvmlDeviceGetTotalEnergyConsumption=read)
    monkeypatch.setitem(sys.modules, "pynvml", stub)
    meter = EnergyMeter([NvmlCounter("card", "handle")])
    meter.start()
    assert (meter.take(), meter.take()) == (2.0, None)
