"""The mask-overfitting gap by hand-made numbers."""

from __future__ import annotations

import numpy as np
import pytest

from evaluation.quality.mask_gap import mask_gap


def test_means_are_over_pieces_and_not_over_stretches() -> None:
    told = mask_gap([1.0, 9.0], [1, 3], [4.0, 12.0], [2, 2])
    assert (told.seen, told.fresh, told.gap.value) == (10 / 4, 16 / 4, 1.5)
    assert told.gap.low <= 1.5 <= told.gap.high
    assert told.gap.rows == 8


def test_the_interval_covers_the_true_gap_and_hard_text_cancels() -> None:
    random = np.random.default_rng(0)
    hard = random.gamma(2.0, 2.0, 64)
    counts = np.full(64, 100)
    seen = counts * (hard + random.normal(0, 0.05, 64))
    fresh = counts * (hard + 0.2 + random.normal(0, 0.05, 64))
    gap = mask_gap(seen, counts, fresh, counts).gap
    assert gap.holds(0.2)
    assert gap.high - gap.low < 0.08, "stretches are resampled together"
    assert mask_gap(seen, counts, seen, counts).gap.value == 0


def test_nothing_masked() -> None:
    with pytest.raises(ValueError, match="no masked piece"):
        mask_gap([], [], [], [])
    with pytest.raises(ValueError, match="no masked piece"):
        mask_gap([1.0], [1], [0.0], [0])
