"""Vectors as an index keeps them: on few rows, and on rows without a figure."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from compress.data.tables.table import Rows
from compress.data.tasks.embedding import OVERLAP, SPEARMAN
from compress.errors import UserError
from compress.measure import stored_vectors
from compress.measure.stored_vectors import StoredFigures, measure_stored_vectors, metric_of


@pytest.fixture(autouse=True)
def few_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_vectors, "SEARCHED", 64)


def measure(rows: Rows, count: int, metric: str) -> list[StoredFigures]:
    seconds = itertools.count()
    vectors = np.random.default_rng(0).normal(size=(count, 8)).astype(np.float32)
    kinds = ("float32", "int8", "binary")
    return list(
        measure_stored_vectors(vectors, rows, metric, kinds, [4], resamples=20, clock=lambda: float(next(seconds)))
    )


def texts(count: int) -> Rows:
    return Rows({"text": ["a"] * count}, None, np.arange(count))  # type: ignore[arg-type]


def pairs(*scores: float) -> Rows:
    both = {"text": ["a"] * len(scores), "text_pair": ["b"] * len(scores)}
    return Rows(both, np.array(scores, dtype=np.float32), np.arange(len(scores)))  # type: ignore[arg-type]


def test_all_dimensions_as_floats_come_first_and_are_compared_with() -> None:
    first, *others = measure(texts(12), 12, metric_of(texts(12), SPEARMAN))
    assert (first.kind, first.dimensions, first.quality.value, first.difference) == ("float32", 8, 1.0, None)
    assert [(one.kind, one.dimensions) for one in others] == [("float32", 4), ("int8", 4), ("binary", 4)]
    assert all(one.difference is not None for one in others)
    assert [one.kind for one in others if one.ranges is not None] == ["int8"]


def test_documents_are_ranked_by_dot_product_where_the_folder_says_so() -> None:
    both = {"text": ["a", "b"], "text_pair": ["c", "d"]}
    rows = Rows(both, np.full(2, np.nan, np.float32), np.arange(2))  # type: ignore[arg-type]
    rows = replace(rows, columns={name: pa.chunked_array([texts]) for name, texts in both.items()})
    vectors = np.array([[1, 0], [0, 1], [1, 0.5], [9, 8]], dtype=np.float32)  # the long document wins by its length
    found = {
        by: next(measure_stored_vectors(vectors, rows, "mrr_at_10", ["int8"], [2], similarity=by, resamples=20))
        for by in ("cosine", "dot")
    }
    assert (found["cosine"].quality.value, found["dot"].quality.value) == (1.0, 0.75)


@pytest.mark.parametrize("count", [1, 2, 11])
def test_too_few_texts_are_one_line(count: int) -> None:
    with pytest.raises(
        UserError, match=f"the rows are too few: they have {count} texts, and 10 nearest neighbours need 12 or more"
    ):
        measure(texts(count), count, OVERLAP)


@pytest.mark.parametrize("scores", [(1.0,), (2.0, 2.0, 2.0)])
def test_scores_without_an_order_are_one_line(scores: tuple[float, ...]) -> None:
    with pytest.raises(UserError, match=r"Spearman is undefined on these rows: .*; give rows with different scores"):
        measure(pairs(*scores), 2 * len(scores), SPEARMAN)
    assert len(measure(pairs(1.0, 2.0, 3.0), 6, SPEARMAN)) == 4
