"""How far a masked language model has learned its masks by heart: its loss on masks it saw against fresh ones."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from evaluation.quality.intervals import Interval, percentile_interval


@dataclass(frozen=True)
class MaskGap:
    """Mean loss a masked piece (nats) under the masks of training and under fresh masks of the same text.

    gap: fresh minus seen, with its interval; above 0 the model answers masks that it remembers.
    """

    seen: float
    fresh: float
    gap: Interval


def mask_gap(
    seen: ArrayLike,
    seen_counts: ArrayLike,
    fresh: ArrayLike,
    fresh_counts: ArrayLike,
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> MaskGap:
    """The mask-overfitting gap from sums of losses over N stretches of text, each masked in both ways.

    seen, fresh: (N,) summed losses; their counts: (N,) how many pieces were masked. Stretches are resampled together,
    so that hard text weighs on both sides alike. Raises ValueError when nothing was masked.
    """
    sums = np.stack([np.asarray(seen, dtype=np.float64), np.asarray(fresh, dtype=np.float64)])
    counts = np.stack([np.asarray(seen_counts, dtype=np.float64), np.asarray(fresh_counts, dtype=np.float64)])
    if sums.shape[1] == 0 or not counts.sum(1).all():
        raise ValueError("no masked piece on one of the sides")
    old, new = sums.sum(1) / counts.sum(1)
    draws = np.random.default_rng(seed).multinomial(sums.shape[1], np.full(sums.shape[1], 1 / sums.shape[1]), resamples)
    drawn = (draws @ sums.T) / np.maximum(draws @ counts.T, 1)
    rows = int(counts.sum())
    return MaskGap(float(old), float(new), percentile_interval(new - old, drawn[:, 1] - drawn[:, 0], rows))
