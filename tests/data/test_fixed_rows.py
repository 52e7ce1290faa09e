"""Rows that are the same in every epoch: which sources have them, and what their fingerprint depends on."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pytest

from compress.contracts import BatchSource
from compress.data.batches.examples import Examples
from compress.data.batches.fixed_rows import FixedRows, get_fixed_rows
from compress.data.batches.task_batches import TaskBatches

LENGTHS = (3, 5, 4)
OFFSETS = np.array([0, 3, 8, 12], np.int64)


def examples(**changes: Any) -> Examples:
    given: dict[str, Any] = {
        "ids": np.arange(10, 22, dtype=np.int32),
        "offsets": OFFSETS,
        "segments": np.zeros(12, np.uint8),
        "special": np.zeros(12, bool),
        "labels": np.array([0, 1, 0]),
        "numbers": np.arange(1, 4),
        "cut": 0,
        "fingerprint": "of the set",
    }
    return Examples(**(given | changes))


def rows_of(made: Examples, seed: int = 0) -> FixedRows:
    found = get_fixed_rows(TaskBatches(made, 2, 100, seed))
    assert found is not None
    return found


def test_what_no_model_reads_does_not_change_the_fingerprint() -> None:
    """A teacher's kept answers serve other labels, other seeds, and ids that are stored in more bytes."""
    plain = rows_of(examples()).fingerprint
    assert rows_of(examples(labels=np.array([1, 1, 1]), fingerprint="of another set"), seed=9).fingerprint == plain
    assert rows_of(examples(ids=np.arange(10, 22, dtype=np.int64))).fingerprint == plain


@pytest.mark.parametrize(
    "changes",
    [
        {"ids": np.arange(11, 23, dtype=np.int32)},
        {"offsets": np.array([0, 3, 7, 12], np.int64)},
        {"segments": np.array([0] * 11 + [1], np.uint8)},
    ],
    ids=["an id", "a border", "a segment"],
)
def test_what_a_model_reads_does(changes: dict[str, Any]) -> None:
    assert rows_of(examples(**changes)).fingerprint != rows_of(examples()).fingerprint


def test_numbers_do_not_move_between_the_arrays_unseen() -> None:
    """One row of ids 10, 11 and no segments is not one of id 10 whose segment is 11."""
    one = examples(ids=np.array([10], np.int32), offsets=np.array([0, 1]), segments=np.array([11], np.uint8))
    two = examples(ids=np.array([10, 0], np.int32), offsets=np.array([1, 11]), segments=np.array([], np.uint8))
    assert rows_of(one).fingerprint != rows_of(two).fingerprint


def test_batches_name_their_rows_and_keep_the_budget() -> None:
    found = rows_of(examples())
    assert found.lengths.tolist() == list(LENGTHS)
    batches = found.batches(np.array([2, 0, 1]), max_tokens=7)
    assert sorted(row for batch in batches for row in batch.row_ids.tolist()) == [0, 1, 2]
    assert all(batch.tokens <= 7 for batch in batches)
    for batch in batches:
        lengths = batch.cu_seqlens.diff().tolist()
        assert lengths == [LENGTHS[row] for row in batch.row_ids.tolist()]


def test_a_row_above_the_budget_stands_alone() -> None:
    batches = rows_of(examples()).batches(np.array([0, 1, 2]), max_tokens=2)
    assert [batch.rows for batch in batches] == [1, 1, 1]


def test_rows_that_change_with_the_epoch_are_not_fixed() -> None:
    @dataclasses.dataclass
    class Drawn:
        fingerprint: str = "anew"

    assert get_fixed_rows(cast(BatchSource, Drawn())) is None
