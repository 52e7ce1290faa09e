"""The rows of a step, dealt to several processes, which wait for the one with the most tokens."""

from __future__ import annotations

import heapq

import numpy as np


def deal(lengths: np.ndarray, rank: int, world: int) -> np.ndarray:
    """Places in `lengths`, rising, of the rows that process `rank` of `world` reads; each row is read by one.

    lengths: (N,) tokens of each row. The longest row goes first, each to the process with the fewest tokens so far
    (Graham 1969: the fullest process has at most 4/3 of what the best division gives it). With fewer rows than
    processes, the last ones get none.
    """
    if world == 1:
        return np.arange(len(lengths))
    held = [(0, process) for process in range(world)]
    mine = []
    for place in np.argsort(-lengths, kind="stable").tolist():
        tokens, process = held[0]
        heapq.heapreplace(held, (tokens + int(lengths[place]), process))
        if process == rank:
            mine.append(place)
    return np.array(sorted(mine), dtype=np.int64)
