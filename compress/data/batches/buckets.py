"""Length buckets: which rows a runtime answers together that pads every row of a batch to the longest one."""

from __future__ import annotations

import numpy as np


def bucket_rows(lengths: np.ndarray, max_tokens: int, call_tokens: int) -> list[np.ndarray]:
    """(N,) tokens of each row → the rows of each batch, every row once, shortest first.

    max_tokens: of a batch, padding included; a longer row stands alone.  call_tokens: tokens whose computation takes as
    long as what every call costs. Of all ways to cut the sorted rows between two lengths, this one computes the fewest
    tokens, padding and calls included: with many rows buckets have one length and no padding, with few they are wider.
    A bucket above the budget becomes several batches of about equal size.
    """
    if len(lengths) == 1:  # one text is answered at a time, and waits for this
        return [np.zeros(1, dtype=np.int64)]
    ranked = np.argsort(lengths, kind="stable")
    distinct, counts = np.unique(lengths, return_counts=True)
    before = np.concatenate([[0], np.cumsum(counts)])  # rows shorter than the i-th length
    cuts, widths = _cut(distinct, before, max_tokens, call_tokens)
    buckets = np.split(ranked, before[cuts[1:-1]]) if len(ranked) else []
    return [
        part
        for rows, width in zip(buckets, widths, strict=True)
        for part in np.array_split(rows, _calls(len(rows), width, max_tokens))
    ]


def _cut(distinct: np.ndarray, before: np.ndarray, max_tokens: int, call_tokens: int) -> tuple[list[int], list[int]]:
    """(where buckets begin and end among the distinct lengths, the longest row of each), by dynamic programming:
    the cheapest cut of the first j lengths ends with a bucket from i to j after the cheapest cut of the first i."""
    cheapest = np.zeros(len(distinct) + 1, dtype=np.int64)
    came_from = np.zeros(len(distinct) + 1, dtype=np.int64)
    for j, width in enumerate(distinct.tolist(), 1):
        rows = before[j] - before[:j]
        costs = cheapest[:j] + rows * width + call_tokens * _calls(rows, width, max_tokens)
        came_from[j] = costs.argmin()
        cheapest[j] = costs[came_from[j]]
    cuts = [len(distinct)]
    while cuts[-1]:
        cuts.append(int(came_from[cuts[-1]]))
    cuts.reverse()
    return cuts, distinct[np.array(cuts[1:], dtype=np.int64) - 1].tolist()


def _calls(rows, width: int, max_tokens: int):
    """Batches that so many rows of `width` tokens need."""
    return -(-rows // max(1, max_tokens // max(1, width)))
