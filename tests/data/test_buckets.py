"""Length buckets: every row once, no batch above its budget, and no padding where there are rows enough."""

from __future__ import annotations

import numpy as np
import pytest
from example_counts import scaled
from hypothesis import example, given, settings
from hypothesis import strategies as st

from compress.data.batches.buckets import bucket_rows

LENGTHS = st.lists(st.integers(0, 40), max_size=60).map(lambda found: np.array(found, dtype=np.int64))


def cost(lengths: np.ndarray, parts: list[np.ndarray], call_tokens: int) -> int:
    return sum(len(part) * int(lengths[part].max()) + call_tokens for part in parts)


@given(LENGTHS, st.integers(1, 200), st.integers(0, 50))
@settings(max_examples=scaled(100), deadline=None)
def test_every_row_is_in_one_batch_within_the_budget(lengths: np.ndarray, max_tokens: int, call_tokens: int) -> None:
    parts = bucket_rows(lengths, max_tokens, call_tokens)
    assert sorted(np.concatenate([np.zeros(0, np.int64), *parts]).tolist()) == list(range(len(lengths)))
    longest = [lengths[part].max() for part in parts]
    assert longest == sorted(longest)
    assert all(len(part) == 1 or len(part) * most <= max_tokens for part, most in zip(parts, longest, strict=True))


@given(LENGTHS.filter(len), st.integers(40, 200), st.integers(1, 50))
@example(np.array([28, 28, 28, 29]), 58, 2)
@settings(max_examples=scaled(100), deadline=None)
def test_no_simple_way_computes_fewer_tokens(lengths: np.ndarray, max_tokens: int, call_tokens: int) -> None:
    ours = cost(lengths, bucket_rows(lengths, max_tokens, call_tokens), call_tokens)
    ranked = np.argsort(lengths, kind="stable")
    rows = max(1, max_tokens // max(1, lengths.max()))
    sorted_rows = [ranked[i : i + rows] for i in range(0, len(ranked), rows)]
    # A batch of sorted rows may hold the last of one length and the first of the next: a call less for each length.
    assert ours <= cost(lengths, sorted_rows, call_tokens) + call_tokens * len(np.unique(lengths))
    assert ours <= cost(lengths, bucket_rows(lengths, max_tokens, 0), call_tokens)


def test_rows_without_end_are_not_padded() -> None:
    lengths = np.random.default_rng(0).integers(5, 20, 3000)
    assert all(len(np.unique(lengths[part])) == 1 for part in bucket_rows(lengths, 256, 24))


@pytest.mark.parametrize(
    ("call_tokens", "found"),
    [(1, [[1, 3], [0], [2]]), (5, [[1, 3], [0, 2]]), (1000, [[1, 3, 0, 2]])],
)
def test_what_a_call_costs_decides_how_wide_a_bucket_is(call_tokens: int, found: list[list[int]]) -> None:
    lengths = np.array([8, 4, 10, 4])
    assert [part.tolist() for part in bucket_rows(lengths, 1024, call_tokens)] == found
