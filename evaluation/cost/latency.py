"""How long a call takes, as if nothing else ran on the machine, or not at all.

A neighbour that wants the processor interrupts a long call and leaves a short one alone, so that the wall times of a
busy machine are wrong by a factor, and their ratios too. A round in which none of our threads waited for a processor is
clean, and its wall time is the call's. Where there are too few clean rounds, a call on one thread is timed by its
processor time, which stands still while others run. Threads that wait for each other use processor time while they
wait, so with several of them the time is then unknown.
"""

from __future__ import annotations

import contextlib
import math
import os
import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a machine that only times exported files has no torch
    import torch

SETTLED = 0.1
"""Seconds above which a call does not notice what the processor's caches held before it."""
SETTLING = 2
"""Parts of a call that run untimed before it."""
MINIMUM_CPU_SHARE = 0.9  # of wall time x threads; below it somebody else had the processor (or the call waits)
WAITED = 0.03
"""Share of a round's wall time that our threads may have waited for a processor while it still counts as clean."""
ENOUGH = 5
"""Clean rounds below which they are too few, where that many were made."""
EXTRA = 3
"""Times the rounds asked for that are made at most, while too few are clean."""
RERUN = 0.05
"""Share by which two measurements of one model on a quiet machine differ: no interval of a ratio is narrower."""
WIDEST = 1.5
"""Upper end over lower end of a ratio's interval above which the ratio is unknown."""
BLOCKS = 5
QUIET = 0.8
"""Share of clean rounds below which a machine is busy."""
BUSY_RERUN = 0.10
"""`RERUN` of a busy machine: what neighbours do to caches differs from minute to minute (benchmarks/RESULTS.md)."""

Clock = Literal["wall time", "processor time", "unknown"]
Call = Callable[[], Any]
Samples = NDArray[np.float64]


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call, by `clock`; where that is unknown they are wall times that neighbours may have stretched.

    cpu_share: this process's CPU seconds over wall seconds (about 1 on one thread).  spread: width of the middle half
    of the times over their median.  clean: share of the rounds that are.  times: (N,) what the percentiles are of, in
    the order they were measured.  processor_times: the same of one thread's processor time; empty with several threads.
    parts: (P,) the median of each part of the call, by the same clock.
    """

    p50: float
    p95: float
    p99: float
    minimum: float
    repeats: int
    cpu_share: float
    spread: float
    clock: Clock = "wall time"
    clean: float = 1.0
    times: Samples = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    processor_times: Samples = field(default_factory=lambda: np.empty(0), repr=False, compare=False)
    parts: Samples = field(default_factory=lambda: np.empty(0), repr=False, compare=False)

    @property
    def is_known(self) -> bool:
        """Whether the times are the call's own."""
        return self.clock != "unknown"

    @property
    def contaminated(self) -> bool:
        """True when the machine was busy: too little CPU per second, or the middle half is more than 10 % wide."""
        return self.cpu_share < MINIMUM_CPU_SHARE or self.spread > 0.10


@dataclass(frozen=True)
class Ratio:
    """Times of one model over those of another, with the ends of an interval that also holds what a quiet machine
    shows."""

    value: float
    low: float
    high: float


def measure_latency(
    call: Call,
    *,
    device: str | torch.device,
    warmup: int = 5,
    repeats: int = 50,
    seconds: float = 10.0,
) -> Latency:
    """Time `call` `repeats` times after `warmup` calls, but stop early after `seconds` (never below 5 repeats).

    device: where the call computes; each timed call ends when an accelerator has computed it. Raises ValueError when
    repeats is not positive.
    """
    return measure_interleaved([call], device=device, warmup=warmup, repeats=repeats, seconds=seconds)[0]


def find_synchronize(device: str | torch.device) -> Call | None:
    """What waits until a device has computed all that was launched; None for the CPU, which launches nothing."""
    kind = str(device).partition(":")[0]
    if kind == "cpu":
        return None
    if kind == "cuda":
        import torch

        return lambda: torch.cuda.synchronize(device)
    raise ValueError(f"calls on {kind} cannot be timed")


def measure_interleaved(
    calls: Sequence[Call | Sequence[Call]],
    *,
    device: str | torch.device,
    warmup: int = 5,
    repeats: int = 50,
    seconds: float = 10.0,
    told: Callable[[int], None] = lambda _: None,
    threads: int | None = None,
) -> list[Latency]:
    """Time several calls in turn (A B A B ...), so that a drifting machine is the same for all of them.

    A call may be a list of parts, which are timed one by one: short parts find the machine free where the whole would
    not. Where there are several calls, an untimed one, or its first two parts, comes before each that is timed: who
    serves one model has it in the caches, and a large one before it would leave a small one none of them. While too few
    rounds are clean, up to `EXTRA` times the repeats are made within the time. device: as of `measure_latency`.  told:
    of how many rounds are done, between two of them.  threads: that the calls compute with on the CPU; None: torch's.
    """
    if repeats <= 0:
        raise ValueError(f"repeats must be positive, not {repeats}")
    synchronize = find_synchronize(device)
    one_thread = synchronize is None and (threads or _count_torch_threads()) == 1
    timers = [_Timer([call] if callable(call) else call, len(calls) > 1, synchronize, one_thread) for call in calls]
    for timer in timers:
        timer.warm_up(warmup)
    with _Waits() as waits:
        begin = time.perf_counter()
        for done in range(count_most_rounds(repeats)):
            if done >= min(5, repeats) and time.perf_counter() - begin > seconds * len(calls):
                break
            if done >= repeats and not any(timer.is_short_of_clean(repeats) for timer in timers):
                break
            for timer in timers:
                timer.measure(waits)
            told(done + 1)
    return [timer.latency(repeats) for timer in timers]


def _count_torch_threads() -> int:
    import torch

    return torch.get_num_threads()


def count_most_rounds(repeats: int) -> int:
    """How many rounds are made at most, while too few are clean."""
    return EXTRA * repeats


def compare_latencies(slow: Latency, fast: Latency, *, resamples: int = 400, seed: int = 0) -> Ratio | None:
    """How many times as long `slow` takes as `fast`; None where a time is unknown or 0, or the interval is too wide.

    Both were measured in turn. The interval is the hull of 95 % bootstrap intervals over blocks of rounds, of the ratio
    of medians and of lower quartiles, and never narrower than `RERUN` to both sides. Neighbours empty the caches and
    share a core's units, which lengthens clean rounds and processor time too, of one call more than of another: on a
    busy machine the interval also holds the ratios of each one's least time to the other's median, and `BUSY_RERUN`.
    """
    if not (slow.is_known and fast.is_known):
        return None
    by_wall = slow.clock == fast.clock == "wall time"
    one, other = (slow.times, fast.times) if by_wall else (slow.processor_times, fast.processor_times)
    if not (len(one) and len(other)) or min(one.min(), other.min()) <= 0:  # the clock is too coarse
        return None
    value = float(np.median(one) / np.median(other))
    busy = not by_wall or min(slow.clean, fast.clean) < QUIET
    margin = BUSY_RERUN if busy else RERUN
    ends = [value * (1 - margin), value * (1 + margin), *_ends(one, other, resamples, np.random.default_rng(seed))]
    if busy:
        ends += [float(one.min() / np.median(other)), float(np.median(one) / other.min())]
    low, high = min(ends), max(ends)
    return Ratio(value, low, high) if high <= WIDEST * low else None


def _ends(one: Samples, other: Samples, resamples: int, generator: np.random.Generator) -> list[float]:
    """Of the ratio's 95 % intervals: of the median and of the lower quartile."""
    drawn = [_resampled(times, resamples, generator) for times in (one, other)]
    found = []
    for share in (0.25, 0.5):
        ratios = np.quantile(drawn[0], share, axis=1) / np.quantile(drawn[1], share, axis=1)
        found += list(np.quantile(ratios, [0.025, 0.975]))
    return found


def _resampled(times: Samples, resamples: int, generator: np.random.Generator) -> Samples:
    """(resamples, about N) by blocks of neighbouring rounds: a machine that is slow stays slow for a while."""
    width = max(1, len(times) // (4 * BLOCKS))
    starts = generator.integers(0, len(times) - width + 1, (resamples, math.ceil(len(times) / width)))
    return times[(starts[:, :, None] + np.arange(width)).reshape(resamples, -1)]


class _Timer:
    """One call: what its rounds took. Each round is (parts, 3): wall, processor and waited seconds."""

    def __init__(self, parts: Sequence[Call], settle: bool, synchronize: Call | None, one_thread: bool) -> None:
        self._parts, self._synchronize = parts, synchronize
        self._settle, self._one_thread = settle, one_thread
        self._rounds: list[list[tuple[float, float, float]]] = []

    def warm_up(self, calls: int) -> None:
        """As many calls as that; of parts they are calls too."""
        for _ in range(math.ceil(calls / len(self._parts))):
            self.run()

    def run(self) -> None:
        for part in self._parts:
            part()
        self._wait()

    def measure(self, waits: _Waits) -> None:
        """One more round."""
        if self._settle:
            for part in self._parts[:SETTLING]:
                part()
            self._wait()
        made = []
        for part in self._parts:
            waited, cpu, start = waits.seconds(), time.process_time(), time.perf_counter()
            part()
            self._wait()
            elapsed = time.perf_counter() - start
            made.append((elapsed, time.process_time() - cpu, waits.seconds() - waited))
        self._settle = self._settle and made[0][0] < SETTLED
        self._rounds.append(made)

    def is_short_of_clean(self, repeats: int) -> bool:
        """Whether too few rounds are clean, and more may help: something else had the processor in some of them."""
        wall, _, waited = self._array()
        return not self._is_clean(repeats) and bool((waited > WAITED * wall).any())

    def _is_clean(self, repeats: int) -> bool:
        """Whether every part has enough clean rounds."""
        return int(self._clean().sum(0).min()) >= min(ENOUGH, repeats)

    def latency(self, repeats: int) -> Latency:
        """Of all rounds."""
        wall, cpu, waited = self._array()
        clean = self._clean()
        total = float(wall.sum())
        shares = (float(cpu.sum()) / total if total else math.nan, float(clean.mean()))
        own = 1000 * cpu.sum(1) if self._one_thread else np.empty(0)
        if self._is_clean(repeats):
            kept = [1000 * (wall - waited)[clean[:, part], part] for part in range(len(self._parts))]
            fewest, medians = min(map(len, kept)), np.array([np.median(part) for part in kept])
            return _summary(np.sum([part[:fewest] for part in kept], axis=0), shares, "wall time", own, medians)
        if self._one_thread and self._computes():
            return _summary(own, shares, "processor time", own, 1000 * np.median(cpu, axis=0))
        return _summary(1000 * wall.sum(1), shares, "unknown", own, 1000 * np.median(wall, axis=0))

    def _array(self) -> tuple[Samples, Samples, Samples]:
        """(rounds, parts) each: wall, processor and waited seconds."""
        found = np.array(self._rounds, dtype=np.float64)
        return found[..., 0], found[..., 1], found[..., 2]

    def _clean(self) -> NDArray[np.bool_]:
        """(rounds, parts) where nothing of ours waited for a processor, nor the call for anything else."""
        wall, cpu, waited = self._array()
        free = waited <= WAITED * wall
        return free if self._synchronize is not None else free & (cpu >= MINIMUM_CPU_SHARE * wall)

    def _computes(self) -> bool:
        """Whether the call computes for as long as it has a processor: what it lacks of wall time, it waited for one.
        A call that sleeps or waits for another process does not."""
        wall, cpu, waited = self._array()
        return bool(cpu.sum() + waited.sum() >= MINIMUM_CPU_SHARE * wall.sum())

    def _wait(self) -> None:
        if self._synchronize is not None:
            self._synchronize()


class _Waits:
    """Seconds that this process's threads waited for a processor, as far as the system counts them (Linux). Where only
    interruptions are counted, each is a second, so that its round is not clean."""

    def __enter__(self) -> _Waits:
        self._files: list[int] = []
        for path in Path("/proc/self/task").glob("*/schedstat"):
            with contextlib.suppress(OSError):  # a thread that ended meanwhile
                self._files.append(os.open(path, os.O_RDONLY))
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            os.close(file)

    def seconds(self) -> float:
        """So far, of all threads together."""
        if not self._files:
            return float(resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw)
        total = 0
        for file in self._files:
            with contextlib.suppress(OSError):  # a thread that has ended
                total += int(os.pread(file, 64, 0).split()[1])
        return total / 1e9


def _summary(x: Samples, shares: tuple[float, float], clock: Clock, own: Samples, parts: Samples) -> Latency:
    cpu_share, clean = shares
    p25, p50, p75, p95, p99 = np.percentile(x, [25, 50, 75, 95, 99])
    spread = float((p75 - p25) / p50) if p50 else 0.0
    return Latency(
        float(p50), float(p95), float(p99), float(x.min()), len(x), cpu_share, spread, clock, clean, x, own,
        parts,
    )  # fmt: skip
