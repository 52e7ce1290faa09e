"""Queries with the documents that are ranked for each: from pairs with a grade, or found by BM25."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import Ragged, bounds_of
from compress.data.tables.table import Rows, drop_rows, first_rows
from compress.data.text.bm25 import BM25

CANDIDATES = 30
"""Documents that BM25 finds for a query."""
Cell = tuple[int, float, float]
"""Row of a document, its grade, and 1 where it is ranked: 0 is a judged one that is not among the candidates."""


def pack_cells(cells: Sequence[Sequence[Cell]]) -> Ragged:
    """A `Ragged` (W, 3) of float64, a list of cells for each query."""
    values = np.array([cell for row in cells for cell in row], dtype=np.float64).reshape(-1, 3)
    return Ragged(values, bounds_of(map(len, cells)))


def group_pairs(rows: Rows) -> Rows:
    """Pairs (text, text_pair) with a score each → a row a query, with all documents that it comes with.

    A document that comes twice for a query has its higher score. The other columns are those of a query's first pair.
    """
    assert isinstance(rows.labels, np.ndarray)
    places: dict[str, int] = {}
    cells: dict[str, dict[int, float]] = {}
    first: list[int] = []
    row = 0
    for texts, pairs in rows.slices():
        for text, pair in zip(texts, pairs or (), strict=True):
            if text not in cells:
                cells[text] = {}
                first.append(row)
            place, grade = places.setdefault(pair, len(places)), float(rows.labels[row])
            cells[text][place] = max(grade, cells[text].get(place, grade))
            row += 1
    found = [[(place, grade, 1.0) for place, grade in graded.items()] for graded in cells.values()]
    return _of_queries(rows, first, found, list(places))


def mine_candidates(
    rows: Rows, documents: Sequence[str], relevant: Sequence[Mapping[int, float]], own: Sequence[Sequence[int]]
) -> Rows:
    """A row a query: the best documents by BM25, and with them those that are relevant. rows: may repeat a query.

    relevant: per row, document → grade.  own: per row, more documents that are ranked for it.
    """
    texts = rows.texts
    grades: dict[str, dict[int, float]] = {}
    more: dict[str, set[int]] = {}
    first: list[int] = []
    for row, text in enumerate(texts):
        if text not in grades:
            grades[text], more[text] = {}, set()
            first.append(row)
        grades[text] |= relevant[row]
        more[text] |= set(own[row])
    found = []
    for text, best in zip(grades, BM25(documents).best(list(grades), CANDIDATES), strict=True):
        ranked = dict.fromkeys([*best.tolist(), *sorted(more[text]), *grades[text]])
        found.append([(place, grades[text].get(place, 0.0), 1.0) for place in ranked])
    return _of_queries(rows, first, found, documents)


def require_relevant(rows: Rows, where: str, bad_rows: str, notes: list[str]) -> Rows:
    """The queries that have a relevant document. Raises UserError for others, unless they are to be dropped."""
    assert isinstance(rows.labels, Ragged)
    has = rows.labels.rows_with(rows.labels.values[:, 1] > 0)
    if has.all():
        return rows
    count = int((~has).sum())
    of = "1 query" if count == 1 else f"{count:,} queries"
    told = f"{of} without a relevant document ({first_rows(rows.numbers[~has])})"
    drop_rows(
        told, where, bad_rows if has.any() else "refuse", notes, "give one a score above 0", which="these queries"
    )
    return rows.take(np.flatnonzero(has))


def _of_queries(rows: Rows, first: Sequence[int], cells: Sequence[Sequence[Cell]], documents: Sequence[str]) -> Rows:
    """The rows at `first`, each with its cells."""
    part = rows.take(np.array(first, dtype=np.int64))
    searched = pa.chunked_array([pa.array(documents, pa.large_string())])
    return replace(
        part, columns={"text": part.columns["text"]}, labels=pack_cells(cells), taught=None, documents=searched
    )
