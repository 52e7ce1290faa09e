"""Which rows throughput is measured on, and how many they are: a row may be several windows."""

from __future__ import annotations

import numpy as np
import pytest

from compress.data.batches.examples import Examples
from compress.measure.cost import _count_rows, _tell_rows, sample_examples


def build(numbers: list[int]) -> Examples:
    """Windows of two tokens."""
    count, none = len(numbers), np.zeros(len(numbers))
    ids, offsets = np.zeros(2 * count, np.int32), np.arange(0, 2 * count + 1, 2)
    segments, special = np.zeros(2 * count, np.uint8), np.zeros(2 * count, bool)
    return Examples(ids, offsets, segments, special, none, np.array(numbers), 0, "")


@pytest.mark.parametrize(
    ("numbers", "rows", "taken"),
    [
        ([1, 2, 3, 4, 5], 3, [1, 3, 5]),
        ([1, 2, 3], 3, [1, 2, 3]),
        ([1, 1, 1, 2, 3, 3, 4, 5], 3, [1, 1, 1, 3, 3, 5]),
        ([9, 9, 2, 5], 2, [9, 9, 5]),  # in the order of the data, whatever its numbers
    ],
)
def test_a_row_is_drawn_with_all_its_windows(numbers: list[int], rows: int, taken: list[int]) -> None:
    (found,) = sample_examples([build(numbers)], rows)
    assert found.numbers.tolist() == taken
    assert _count_rows(found) == rows


def test_fewer_rows_are_timed_where_they_are_long() -> None:
    queries = build([number for number in range(100) for _ in range(320)])  # of 640 tokens each
    (found,) = sample_examples([queries], 500)
    assert (_count_rows(found), len(found.ids)) == (50, 32_000), "64 tokens for each of the 500 rows"
    assert _count_rows(sample_examples([queries], 60)[0]) == 8, "but not fewer than these"
    assert _count_rows(sample_examples([queries], 4)[0]) == 4


def test_all_models_are_timed_on_the_same_rows() -> None:
    """One that reads shorter texts has more windows."""
    short, long = build([number for number in range(100) for _ in range(64)]), build(list(range(100)))
    many, few = sample_examples([short, long], 60)
    assert sorted(set(many.numbers.tolist())) == few.numbers.tolist()
    assert len(few) == 30


def test_texts_of_an_embedding_model_are_rows_of_their_own() -> None:
    """The numbers of a search's documents are those of its queries, too."""
    search = build([1, 2, 3, 1, 2, 3, 4])
    (found,) = sample_examples([search], 100, single_texts=True)
    assert _tell_rows(found).startswith("7 rows, ")
    assert len(sample_examples([search], 3, single_texts=True)[0]) == 3


def test_windows_are_not_counted_as_rows() -> None:
    assert _tell_rows(build([1, 1, 1, 2])) == "2 rows of 4 sequences, mean 4.0 tokens a row"
    assert _tell_rows(build([1, 2])) == "2 rows, mean 2.0 tokens"
