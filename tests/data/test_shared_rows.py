"""Which rows of one split are in another too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Rows
from compress.data.text.texts import find_overlap


def column(values: list[Any]) -> pa.ChunkedArray:
    kind = pa.list_(pa.string()) if values and isinstance(values[0], list) else pa.string()
    return pa.chunked_array([pa.array(values, kind)])


def rows(numbers: list[int], label: int = 0) -> Rows:
    return Rows({"text": column([f"text {i}" for i in numbers])}, np.full(len(numbers), label), np.array(numbers))


def shared(test: Rows, validation: Rows) -> int:
    return int(find_overlap(test, [validation], exact=True).sum())


@pytest.mark.parametrize(
    ("test", "count"), [([0, 1, 2], 3), ([2, 0, 1], 3), ([1], 1), ([2, 3, 4], 1), ([1, 1], 2), ([3], 0), ([], 0)]
)
def test_rows_in_any_order_and_with_any_label(test: list[int], count: int) -> None:
    assert shared(rows(test), rows([0, 1, 2])) == count
    assert shared(rows(test, label=1), rows([0, 1, 2])) == count
    assert shared(rows(test), rows([])) == 0


def test_one_other_row_decides_nothing() -> None:
    assert shared(rows([*range(999), 5000]), rows(list(range(2000)))) == 999


def test_pairs_are_the_same_where_both_texts_are() -> None:
    def pairs(*second: str) -> Rows:
        found = {"text": column(["a"] * len(second)), "text_pair": column(list(second))}
        return Rows(found, np.zeros(len(second)), np.arange(len(second)))

    assert shared(pairs("x", "y", "z"), pairs("y", "x", "w")) == 2
    turned = Rows({"text": column(["x"]), "text_pair": column(["a"])}, np.zeros(1), np.arange(1))
    assert shared(turned, pairs("x")) == 0


def test_words_with_tags_are_compared_word_by_word() -> None:
    def tagged(words: list[list[str]], tag: int) -> Rows:
        offsets = np.cumsum([0, *map(len, words)])
        return Rows({"words": column(words)}, Ragged(np.full(offsets[-1], tag), offsets), np.arange(len(words)))

    assert shared(tagged([["a", "b"], ["a b"], ["c"]], 1), tagged([["a", "b"], ["d"]], 0)) == 1
