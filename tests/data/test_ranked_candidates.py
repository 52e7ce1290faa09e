"""Queries with the documents that are ranked for each: from pairs with a grade, and found by BM25."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.ragged import Ragged
from compress.data.tables import candidates
from compress.data.tables.candidates import group_pairs, mine_candidates, require_relevant
from compress.data.tables.table import Rows
from compress.errors import UserError


def column(texts: list[str]) -> Any:
    return pa.chunked_array([pa.array(texts, pa.large_string())])


def pairs(*rows: tuple[str, str, float]) -> Rows:
    queries, documents, grades = (list(part) for part in zip(*rows, strict=True))
    columns = {"text": column(queries), "text_pair": column(documents)}
    return Rows(columns, np.array(grades, np.float32), np.arange(1, len(rows) + 1))


def cells(rows: Rows) -> list[list[tuple[float, ...]]]:
    assert isinstance(rows.labels, Ragged)
    ends = rows.labels.offsets
    return [[tuple(cell) for cell in rows.labels.values[a:b].tolist()] for a, b in itertools.pairwise(ends)]


def test_pairs_become_a_row_a_query() -> None:
    found = group_pairs(pairs(("q", "a", 0.0), ("p", "b", 1.0), ("q", "b", 2.0), ("q", "a", 1.0), ("q", "b", 0.0)))
    assert found.texts == ["q", "p"]
    assert found.numbers.tolist() == [1, 2], "those of a query's first pair"
    assert found.documents is not None
    assert found.documents.to_pylist() == ["a", "b"], "each once"
    assert cells(found) == [[(0, 1, 1), (1, 2, 1)], [(1, 1, 1)]], "the higher of two grades stays"


def test_relevant_documents_are_ranked_with_those_that_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(candidates, "CANDIDATES", 1)
    documents = ["a red fox", "the blue sea", "green trees", "a grey stone"]
    queries = Rows({"text": column(["red fox", "sea", "red fox"])}, np.zeros(3), np.array([7, 8, 9]))
    found = mine_candidates(queries, documents, [{3: 2.0}, {}, {0: 1.0}], [[2], [], []])
    assert found.texts == ["red fox", "sea"]
    assert found.numbers.tolist() == [7, 8]
    first, second = cells(found)
    assert first == [(0, 1, 1), (2, 0, 1), (3, 2, 1)], "found, of its own, and relevant; grades of all its rows"
    assert second == [(1, 0, 1)]


def test_a_query_without_a_relevant_document() -> None:
    rows = group_pairs(pairs(("q", "a", 0.0), ("p", "b", 1.0)))
    notes: list[str] = []
    with pytest.raises(UserError, match="train: 1 query without a relevant document"):
        require_relevant(rows, "train", "refuse", notes)
    assert require_relevant(rows, "train", "drop", notes).texts == ["p"]
    assert len(notes) == 1
    none = group_pairs(pairs(("q", "a", 0.0), ("p", "b", 0.0)))
    with pytest.raises(UserError, match="2 queries without"):
        require_relevant(none, "train", "drop", notes)
    every = group_pairs(pairs(("q", "a", 1.0)))
    assert require_relevant(every, "train", "refuse", notes) is every
