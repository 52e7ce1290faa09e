"""Processes share the rows of a step so that each has about as many tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from compress.data.batches.deal import deal


@given(st.lists(st.integers(1, 512), min_size=1, max_size=40), st.integers(1, 6))
def test_each_row_goes_to_one_process_and_none_has_many_more_tokens(given_lengths: list[int], world: int) -> None:
    lengths = np.array(given_lengths)
    parts = [deal(lengths, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(lengths)))
    assert all((np.diff(part) > 0).all() for part in parts)
    assert sum(len(part) > 0 for part in parts) == min(world, len(lengths))
    tokens = [int(lengths[part].sum()) for part in parts]
    assert max(tokens) - min(tokens) <= lengths.max()


def test_tokens_are_even_where_every_second_row_is_long() -> None:
    """Dealt by turns, one process would have 8 times the tokens of the other."""
    lengths = np.tile([8, 64], 8)
    assert [int(lengths[deal(lengths, rank, 2)].sum()) for rank in range(2)] == [288, 288]
