"""Encoded rows of random tokens: for timing and for comparing runtimes, where what is said does not matter."""

from __future__ import annotations

import numpy as np

from compress.data.batches.examples import Examples

MIX_ROWS = 512


def draw_mixed_rows(vocabulary: int, length: int, count: int = MIX_ROWS, *, without: int | None = None) -> Examples:
    """Rows of random tokens with lengths like short reviews: log-normal around 25, from 8 to `length`.

    without: an id that is left out, such as the padding's, which stands in no text.
    """
    generator = np.random.default_rng(0)
    lengths = np.clip(np.exp(generator.normal(3.05, 0.55, count)), min(8, length), length).astype(np.int64)
    rows = draw_random_rows(vocabulary if without is None else vocabulary - 1, lengths, generator)
    if without is not None:
        rows.ids[rows.ids >= without] += 1
    return rows


def draw_random_rows(vocabulary: int, lengths: np.ndarray, generator: np.random.Generator) -> Examples:
    """Rows of random tokens, (N,) lengths given, without labels."""
    offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    count, total = len(lengths), int(offsets[-1])
    ids = generator.integers(0, vocabulary, total).astype(np.int32)
    nothing = np.zeros(total, dtype=bool)
    numbers = np.arange(1, count + 1)
    return Examples(ids, offsets, np.zeros(total, np.uint8), nothing, np.zeros(count, np.int64), numbers, 0, "")
