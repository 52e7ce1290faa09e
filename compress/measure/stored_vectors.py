"""An embedding model's vectors as an index keeps them: fewer dimensions, int8 and binary codes, and what they lose."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from compress.data.tables.table import Rows, spread_places
from compress.data.task import ScoredAnswers
from compress.data.tasks.embedding import ASKED, COMPARED, OVERLAP, SPEARMAN, form_of, relevant_of
from compress.errors import UserError
from compress.report.rows import title
from evaluation.quality.compact_vectors import Kind, StoredVectors, cut
from evaluation.quality.correlation import UndefinedCorrelationError, spearman_of_draws
from evaluation.quality.draws import of_mean
from evaluation.quality.intervals import Interval
from evaluation.quality.retrieval import TOP, cosines, rank_metrics
from evaluation.representation.neighbours import FEWEST_TEXTS, NEIGHBOURS

SEARCHED, TIMED = 1 << 17, 16
"""Vectors that a timed search goes through, and its queries."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class StoredFigures:
    """One way to keep vectors. quality: of the main metric.  difference: from all dimensions as floats, paired row by
    row; None of that row itself.  milliseconds: of one query over a million vectors, at most.  ranges: (2, D) of int8
    codes, which a program that quantizes other vectors alike needs."""

    kind: Kind
    dimensions: int
    bytes_per_vector: int
    quality: Interval
    difference: Interval | None
    milliseconds: float
    ranges: NDArray | None

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints of it."""

        def told(found: Interval | None) -> list[float] | None:
            return None if found is None else [found.value, found.low, found.high]

        return {
            "kind": self.kind, "dimensions": self.dimensions, "bytes_per_vector": self.bytes_per_vector,
            "quality": told(self.quality), "difference": told(self.difference),
            "search_ms_per_million": self.milliseconds,
            "int8_ranges": None if self.ranges is None else self.ranges.tolist(),
        }  # fmt: skip


def measure_stored_vectors(
    vectors: NDArray,
    rows: Rows,
    metric: str,
    kinds: Sequence[Kind],
    dimensions: Sequence[int],
    *,
    parent: NDArray | None = None,
    similarity: Literal["cosine", "dot"] = "cosine",
    resamples: int = 1000,
    clock: Clock = time.perf_counter,
) -> Iterator[StoredFigures]:
    """All dimensions as floats first, then each kind at each width.

    vectors: (N, D) of the examples of `rows`, as the embedding task encodes them.  metric: the main one of such rows;
    on texts alone the overlap of neighbours.  parent: (N, E) of another model, whose neighbours texts are compared
    with; None: those of `vectors` themselves.  similarity: by which documents and neighbours are ranked, "cosine" or
    "dot". Raises UserError for rows on which the metric is undefined.
    """
    if form_of(rows) == "texts" and len(vectors) < FEWEST_TEXTS:
        why = f"they have {len(vectors)} texts, and 10 nearest neighbours need {FEWEST_TEXTS} or more"
        raise UserError("the rows are too few", where="--vectors", why=why, do="give more rows")
    width = vectors.shape[1]
    first: ScoredAnswers | None = None
    normalize = similarity == "cosine"
    reference = vectors if parent is None else parent
    if form_of(rows) == "texts":  # others are not compared with it
        reference = cut(reference, reference.shape[1], normalize=normalize)
    asked = [("float32", width), *((kind, size) for size in dimensions for kind in kinds)]
    for kind, size in dict.fromkeys(asked):
        queries, documents = _sides(cut(vectors, size, normalize=normalize), rows)
        stored = StoredVectors(documents, kind)  # pyright: ignore[reportArgumentType]
        try:
            scored = _score(queries, stored, rows, metric, reference)
            found = scored.interval(metric, resamples=resamples)
            change = None if first is None else scored.difference(first, metric, resamples=resamples)
        except UndefinedCorrelationError as error:
            what = f"{title(metric)} is undefined on these rows"
            raise UserError(what, where="--vectors", why=str(error), do="give rows with different scores") from None
        first = first or scored
        milliseconds = _time_search(queries, stored, clock)
        yield StoredFigures(
            stored.kind, size, stored.bytes_per_vector, found, change, milliseconds,
            stored.ranges if stored.codes is not None else None,
        )  # fmt: skip


def metric_of(rows: Rows, wanted: str) -> str:
    """The metric that rows are scored by here: of texts alone the neighbours that stay, else as everywhere."""
    return OVERLAP if form_of(rows) == "texts" else wanted


def _sides(vectors: NDArray, rows: Rows) -> tuple[NDArray, NDArray]:
    """(queries, documents): of a search, of pairs their first and second texts, of texts some of them and all."""
    if form_of(rows) != "texts":
        return vectors[: len(rows)], vectors[len(rows) :]
    kept = vectors[spread_places(len(vectors), COMPARED)]
    return kept[spread_places(len(kept), ASKED)], kept


def _score(
    queries: NDArray, stored: StoredVectors, rows: Rows, metric: str, reference: NDArray
) -> ScoredAnswers:  # fmt: skip
    form = form_of(rows)
    if form == "scored pairs":
        assert isinstance(rows.labels, np.ndarray)
        return ScoredAnswers(len(rows), {SPEARMAN: spearman_of_draws(rows.labels, cosines(queries, stored.decode()))})
    if form == "retrieval":
        found = stored.search(queries, min(TOP, len(stored)))
        values = rank_metrics(found, relevant_of(rows))
        return ScoredAnswers(len(rows), {metric: of_mean(values[metric.replace("_at_", "@")])})
    theirs, whole = _sides(reference, rows)
    own = spread_places(len(whole), len(theirs)).tolist()
    wanted = StoredVectors(whole, "float32").search(theirs, NEIGHBOURS, skip=own)
    ours = stored.search(queries, NEIGHBOURS, skip=own)
    return ScoredAnswers(len(own), {OVERLAP: of_mean((ours[:, :, None] == wanted[:, None, :]).any(2).mean(1))})


def _time_search(queries: NDArray, stored: StoredVectors, clock: Clock) -> float:
    """ms of one query over a million vectors: the least of three searches through `SEARCHED` of them, scaled."""
    many, few = stored.repeat(SEARCHED), queries[:TIMED]
    times = []
    for _ in range(3):
        begin = clock()
        many.search(few, NEIGHBOURS)
        times.append(clock() - begin)
    return 1000 * min(times) / len(few) * 1e6 / SEARCHED
