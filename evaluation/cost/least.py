"""The least times of many short calls that are made in turn: what else runs on the machine only ever adds."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from evaluation.cost.latency import measure_interleaved

ROUNDS, PATIENCE, NEAR = 8, 30.0, 0.03
"""Rounds at a time, until the two best times of nearly all calls are within so much of each other, for at most so many
seconds."""


def find_least(
    calls: Sequence[Callable[[], object]],
    *,
    device: str,
    threads: int | None = None,
    told: Callable[[int], None] = lambda _: None,
) -> tuple[list[float], bool]:
    """The least milliseconds of each call, and whether they came out otherwise now and then.

    device, threads: as of `measure_interleaved`.  told: of how many rounds are done.
    """
    begin, minima, done = time.monotonic(), np.zeros((0, len(calls))), 0
    while True:
        found = measure_interleaved(
            calls, device=device, warmup=0 if len(minima) else 2, repeats=ROUNDS, threads=threads,
            told=partial(_add, told, done),
        )  # fmt: skip
        done += max(t.repeats for t in found)
        minima = np.sort(np.vstack([minima, [t.minimum for t in found]]), axis=0)
        if len(minima) > 1:
            settled = float(np.mean(minima[1] <= (1 + NEAR) * minima[0])) >= 0.9
            if settled or time.monotonic() - begin > PATIENCE:
                return minima[0].tolist(), not settled


def _add(told: Callable[[int], None], before: int, done: int) -> None:
    told(before + done)
