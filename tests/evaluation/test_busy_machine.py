"""Speeds on a busy machine: as on a quiet one, or unknown."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from compress.contracts import Measurement
from compress.measure.cost import Cost, cost_ratios, known_speeds, known_throughput
from evaluation.cost import latency
from evaluation.cost.latency import Latency, compare_latencies, measure_interleaved

LOAD = "while True: sum(range(10_000))"


class Machine:
    """Clocks, in seconds: what this process does, and what others do while it waits."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.waited = 0.0

    def compute(self, seconds: float) -> None:
        self.wall += seconds
        self.cpu += seconds

    def wait(self, seconds: float, *, counted: bool = True) -> None:
        self.wall += seconds
        self.waited += seconds * counted


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(latency.time, "perf_counter", lambda: made.wall)
    monkeypatch.setattr(latency.time, "process_time", lambda: made.cpu)
    monkeypatch.setattr(latency._Waits, "seconds", lambda _: made.waited)
    return made


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def interrupted(machine: Machine, seconds: float, every: int, pause: float = 0.1) -> Callable[[], None]:
    """A call that others interrupt every so many times."""
    calls = [0]

    def call() -> None:
        calls[0] += 1
        machine.compute(seconds)
        if calls[0] % every == 0:
            machine.wait(pause)

    return call


def test_clean_rounds_are_what_counts(machine: Machine, threads: int) -> None:
    long, short = measure_interleaved(
        [interrupted(machine, 0.03, 3), lambda: machine.compute(0.002)], device="cpu", seconds=60
    )
    assert (long.p50, long.p99, long.minimum) == pytest.approx((30, 30, 30))
    assert (long.clock, short.clock) == ("wall time", "wall time")
    ratio = compare_latencies(long, short)
    assert ratio is not None
    assert (ratio.value, ratio.low, ratio.high) == pytest.approx((15, 15 * 0.9, 15 * 1.1))


def test_more_rounds_are_made_while_too_few_are_clean(machine: Machine, threads: int) -> None:
    rare = interrupted(machine, 0.01, 1)
    calls = [0]

    def call() -> None:
        calls[0] += 1
        rare() if calls[0] % 4 else machine.compute(0.01)

    (found,) = measure_interleaved([call], device="cpu", warmup=0, repeats=8, seconds=60)
    assert calls[0] == 20, "until five are clean"
    assert (found.repeats, found.p50, found.clock) == (5, pytest.approx(10), "wall time")


def test_one_thread_is_timed_by_processor_time_and_several_are_not(machine: Machine, threads: int) -> None:
    long, short = measure_interleaved(
        [interrupted(machine, 0.03, 1), lambda: machine.compute(0.002)], device="cpu", seconds=60
    )
    assert short.clock == "wall time"
    if threads > 1:
        assert not long.is_known
        assert compare_latencies(long, short) is None
        return
    assert (long.clock, long.p50) == ("processor time", pytest.approx(30))
    ratio = compare_latencies(long, short)
    assert ratio is not None
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((15 * 0.9, 15, 15 * 1.1))


def test_a_call_that_waits_by_itself_is_not_timed_by_processor_time(machine: Machine, threads: int) -> None:
    (found,) = measure_interleaved(
        [lambda: (machine.compute(0.001), machine.wait(0.01, counted=False))], device="cpu", repeats=6, seconds=60
    )
    assert not found.is_known
    assert (found.p50, found.repeats) == (pytest.approx(11), 6), "more rounds would not help"


def test_an_accelerator_is_waited_for(machine: Machine, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: machine.wait(0.01, counted=False))
    (found,) = measure_interleaved([lambda: None], device="cuda", seconds=60)
    assert (found.clock, found.p50) == ("wall time", pytest.approx(10))


def test_parts_find_the_machine_free_where_the_whole_does_not(machine: Machine, threads: int) -> None:
    part = interrupted(machine, 0.01, 5)
    whole = measure_interleaved([lambda: [part() for _ in range(8)]], device="cpu", repeats=10, seconds=60)
    parts = measure_interleaved([[part] * 8], device="cpu", repeats=10, seconds=60)
    assert (parts[0].clock, parts[0].p50) == ("wall time", pytest.approx(80))
    assert whole[0].clock == ("processor time" if threads == 1 else "unknown")


def made(clock: latency.Clock, milliseconds: Any, processor: Any = ()) -> Latency:
    times = np.asarray(milliseconds, dtype=np.float64)
    return Latency(
        float(np.median(times)), 1, 1, 1, len(times), 1, 0, clock, 1, times, np.asarray(processor, dtype=np.float64)
    )


def test_a_ratio_needs_both_times_by_one_clock() -> None:
    wall, unknown = made("wall time", [2.0] * 9), made("unknown", [2.0] * 9, [2.0] * 9)
    assert compare_latencies(wall, unknown) is None
    assert compare_latencies(unknown, wall) is None
    assert compare_latencies(made("processor time", [4.0] * 9, [4.0] * 9), wall) is None, "no processor time of one"
    coarse = made("processor time", [4.0] * 9, [4.0] * 8 + [0.0])
    assert compare_latencies(coarse, coarse) is None, "a clock that does not see every round"
    both = compare_latencies(
        made("processor time", [4.0] * 9, [4.0] * 9), replace(wall, processor_times=np.full(9, 1.0))
    )
    assert both is not None
    assert both.value == pytest.approx(4)


def test_the_interval_grows_with_the_spread_until_there_is_none() -> None:
    generator = np.random.default_rng(0)

    def width(spread: float) -> float | None:
        one, other = (made("wall time", base * np.exp(spread * generator.standard_normal(40))) for base in (9.0, 3.0))
        ratio = compare_latencies(one, other)
        if ratio is None:
            return None
        assert ratio.low < 3 < ratio.high
        return ratio.high / ratio.low

    narrow, wide, none = width(0.01), width(0.2), width(1.0)
    assert narrow is not None
    assert wide is not None
    assert narrow == pytest.approx(1.05 / 0.95, rel=0.02), "two runs of one model differ by as much"
    assert narrow < wide
    assert none is None


def test_processor_time_holds_what_empty_caches_do() -> None:
    """A short call is longer after each interruption, a long one hardly: its least time is the quiet one."""
    long, short = np.full(20, 40.0), np.array([2.4] * 15 + [1.8] * 5)
    ratio = compare_latencies(made("processor time", long, long), made("processor time", short, short))
    assert ratio is not None
    assert ratio.low <= 40 / 2.4
    assert ratio.high >= 40 / 1.8


def test_what_is_unknown_is_not_logged() -> None:
    size = {"size/disk_mb": 10.0, "size/params_m": 2.0}
    quiet, cpu, none = (
        made("wall time", [4.0] * 9),
        made("processor time", [2.0] * 9, [2.0] * 9),
        made("unknown", [3.0]),
    )
    assert known_speeds(quiet).keys() == {"speed/latency_p50_ms", "speed/latency_p95_ms", "speed/latency_p99_ms"}
    assert known_speeds(cpu) == {"speed/latency_p50_ms": 2.0}
    assert known_speeds(none) == known_throughput(none, 8) == {}
    assert known_throughput(quiet, 8) == {"speed/throughput_sps": 2000.0}
    teacher = Cost(Measurement(size, {}), quiet, quiet)
    assert cost_ratios(Cost(Measurement(size, {}), none, none), teacher).keys() == {
        "vs_teacher/size_ratio", "vs_teacher/params_ratio",
    }  # fmt: skip
    found = cost_ratios(Cost(Measurement(size, {}), made("wall time", [2.0] * 9), quiet), teacher)
    assert found["vs_teacher/speedup"] == pytest.approx(2)
    assert found["vs_teacher/speedup_low"] < 2 < found["vs_teacher/speedup_high"]
    assert found["vs_teacher/throughput_ratio"] == pytest.approx(1)


@pytest.mark.thorough
def test_under_load_the_interval_holds_the_ratio_or_there_is_none() -> None:
    """Two calls whose ratio is known: one does ten times what the other does. Ten of ten."""
    x = torch.randn(48, 48)
    before = torch.get_num_threads()
    torch.set_num_threads(1)

    def work(times: int) -> Callable[[], None]:
        def call() -> None:
            for _ in range(times):
                torch.tanh(x @ x)

        return call

    load = [subprocess.Popen([sys.executable, "-c", LOAD]) for _ in range(os.cpu_count() or 1)]
    try:
        found = []
        for _ in range(10):
            long, short = measure_interleaved([work(1000), work(100)], device="cpu", warmup=2, repeats=12, seconds=0.4)
            found.append(compare_latencies(long, short))
    finally:
        torch.set_num_threads(before)
        for process in load:
            process.kill()
            process.wait()
    wrong = [ratio for ratio in found if ratio is not None and not ratio.low <= 10 <= ratio.high]
    assert not wrong
