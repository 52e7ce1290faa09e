"""The number of CPU threads of a training: as given, or what `auto` measures: one thread or all, whichever is faster.

Small matrices gain little from a second thread, and beside a busy program two threads that wait for each other can be
slower than one.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from compress.errors import format_count

MIN_STEPS = 50
"""Steps of a training that is worth a comparison, which takes a dozen of them."""
SLOW_STEP = 2.0
"""Seconds. Products that take this long with all threads are large enough to gain from them."""
ROUNDS, MAX_ROUNDS, ENOUGH_SECONDS = 3, 9, 1.0
"""Rounds of one step each: at least the first, at most the second number, no more once they took this long in all."""
CLEAR = 4.0
"""A ratio of two first steps that needs no second look."""


@dataclass(frozen=True)
class ThreadChoice:
    """threads: the number chosen.  reason: why, for people."""

    threads: int
    reason: str

    def __str__(self) -> str:
        return f"training uses {format_count(self.threads, 'thread')}: {self.reason}"


@contextmanager
def preserve_threads() -> Iterator[None]:
    """What runs inside may set torch's number of threads: afterwards it is as before."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        if torch.get_num_threads() != before:
            torch.set_num_threads(before)


def choose_threads(
    make_step: Callable[[int], None],
    total: int,
    clock: Callable[[], float],
    *,
    stopped: Callable[[], bool] = lambda: False,
) -> ThreadChoice:
    """Time training steps with one thread and with torch's present number of them, in turn.

    make_step: makes a step on the batch of this number; called a first time untimed.  total: steps of the training.
    clock: seconds.  stopped: whether to end early. Leaves torch's number of threads at one of both.
    """
    most = torch.get_num_threads()
    if most == 1:
        return ThreadChoice(1, "no more are available")
    if total < MIN_STEPS:
        return ThreadChoice(most, f"{total} steps are too few to compare with 1 thread")

    def time_step(threads: int, number: int) -> float:
        torch.set_num_threads(threads)
        begin = clock()
        make_step(number)
        return clock() - begin

    time_step(most, 0)  # what is loaded and reserved at the first step is not timed
    times: dict[int, list[float]] = {most: [], 1: []}
    while not stopped():
        number = len(times[1])
        times[most].append(time_step(most, number))
        if not number and times[most][0] > SLOW_STEP:
            return ThreadChoice(most, f"a step takes {times[most][0]:.1f} s, too long to compare with 1 thread")
        times[1].append(time_step(1, number))
        if not number and max(times[1][0], times[most][0]) > CLEAR * min(times[1][0], times[most][0]):
            break
        spent = sum(times[1]) + sum(times[most])
        if number + 1 >= MAX_ROUNDS or (number + 1 >= ROUNDS and spent > ENOUGH_SECONDS):
            break
    if not times[1]:
        return ThreadChoice(most, "the comparison was stopped")
    typical = {threads: statistics.median(row) for threads, row in times.items()}
    best = min((1, most), key=lambda threads: typical[threads])  # one thread where both are alike
    told = " and ".join(f"{typical[n] * 1000:.3g} ms with {format_count(n, 'thread')}" for n in (1, most))
    return ThreadChoice(best, f"a step takes {told}")
