"""How long a call takes: warm-up, many repeats, percentiles, and whether something else was using the processor."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SETTLED = 0.1
"""Seconds above which a call does not notice what the processor's caches held before it."""
MINIMUM_CPU_SHARE = 0.9  # of wall time x threads; below it somebody else had the processor (or the call waits)


@dataclass(frozen=True)
class Latency:
    """Milliseconds per call. cpu_share: this process's CPU seconds over wall seconds (about 1 on one thread)."""

    p50: float
    p95: float
    p99: float
    minimum: float
    repeats: int
    cpu_share: float
    spread: float

    @property
    def contaminated(self) -> bool:
        """True when the machine was busy: too little CPU per second, or the middle half is more than 10 % wide."""
        return self.cpu_share < MINIMUM_CPU_SHARE or self.spread > 0.10


def measure_latency(
    call: Callable[[], Any],
    *,
    warmup: int = 5,
    repeats: int = 50,
    seconds: float = 10.0,
    synchronize: Callable[[], Any] | None = None,
) -> Latency:
    """Time `call` `repeats` times after `warmup` calls, but stop early after `seconds` (never below 5 repeats).

    synchronize: waits for an accelerator. Raises ValueError when repeats is not positive.
    """
    return measure_interleaved([call], warmup=warmup, repeats=repeats, seconds=seconds, synchronize=synchronize)[0]


def measure_interleaved(
    calls: Sequence[Callable[[], Any]],
    *,
    warmup: int = 5,
    repeats: int = 50,
    seconds: float = 10.0,
    synchronize: Callable[[], Any] | None = None,
) -> list[Latency]:
    """Time several calls in turn (A B A B ...), so that a drifting machine is the same for all of them.

    Where there are several, an untimed call of its own comes before each that is timed: who serves one model has it in
    the caches, and a large one before it would leave a small one none of them. synchronize: as of `measure_latency`.
    """
    if repeats <= 0:
        raise ValueError(f"repeats must be positive, not {repeats}")
    wait = synchronize or (lambda: None)
    for call in calls:
        for _ in range(warmup):
            call()
    wait()
    settle = [len(calls) > 1] * len(calls)
    times: list[list[float]] = [[] for _ in calls]
    cpu, wall = [0.0] * len(calls), [0.0] * len(calls)
    begin = time.perf_counter()
    for done in range(repeats):
        if done >= min(5, repeats) and time.perf_counter() - begin > seconds * len(calls):
            break
        for i, call in enumerate(calls):
            if settle[i]:
                call()
                wait()
            cpu_start, start = time.process_time(), time.perf_counter()
            call()
            wait()
            elapsed = time.perf_counter() - start
            settle[i] = settle[i] and elapsed < SETTLED
            times[i].append(elapsed * 1000)
            wall[i] += elapsed
            cpu[i] += time.process_time() - cpu_start
    return [_summary(t, c / w if w else math.nan) for t, c, w in zip(times, cpu, wall, strict=True)]


def _summary(milliseconds: list[float], cpu_share: float) -> Latency:
    x = np.asarray(milliseconds)
    p25, p50, p75, p95, p99 = np.percentile(x, [25, 50, 75, 95, 99])
    return Latency(
        float(p50), float(p95), float(p99), float(x.min()), len(x), cpu_share, float((p75 - p25) / p50) if p50 else 0.0
    )
