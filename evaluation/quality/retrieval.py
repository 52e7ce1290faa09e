"""Retrieval by vectors: exact search in blocks, and nDCG, MRR and recall of what is found, one value a query.

Definitions as in trec_eval, which BEIR (Thakur et al., arXiv 2104.08663) reports, and as in the evaluators of
sentence-transformers where all relevant documents have grade 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

Similarity = Literal["cosine", "dot", "hamming"]
"""hamming: of packed bits (N, D / 8) uint8, minus the number of bits that differ."""
DOCUMENTS, QUERIES = 8192, 256
"""Rows of one block of the search, whose scores take some tens of MB whatever the number of documents."""
TOP = 100
"""Documents that are ranked for a query."""
_INDEX = np.int64(0xFFFFFFFF)


class Vectors(Protocol):
    """(N, D) numbers that are read in slices of rows: an array in memory or in a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: slice, /) -> NDArray: ...


def search(
    queries: Vectors,
    documents: Vectors,
    top: int,
    *,
    similarity: Similarity = "cosine",
    skip: Sequence[int] | None = None,
) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """(Q, top) rows of the most similar documents, best first, and their similarities, for queries (Q, D) and
    documents (N, D); of equal ones the first row comes first.

    Exact: every query is compared with every document, in blocks, in memory that does not grow with N.
    skip: (Q,) a document that is left out for each query, such as the query itself.
    Raises ValueError for widths that differ, fewer than `top` documents, and numbers that are not finite.
    """
    count, (total, width) = queries.shape[0], documents.shape
    if queries.shape[1] != width:
        raise ValueError(f"queries have {queries.shape[1]} dimensions and documents {width}")
    if not 1 <= top <= total - (skip is not None):
        raise ValueError(f"the {top} most similar of {total} documents cannot be found")
    best = np.full((count, top), np.iinfo(np.int64).min, dtype=np.int64)
    asked = [_ready(queries[at : at + QUERIES], similarity, "queries") for at in range(0, count, QUERIES)]
    for start in range(0, total, DOCUMENTS):
        block = _ready(documents[start : start + DOCUMENTS], similarity, "documents")
        rows = np.arange(start, start + len(block))
        for number, part in enumerate(asked):
            here = slice(number * QUERIES, number * QUERIES + len(part))
            keys = _keys(_agreement(part, block) if similarity == "hamming" else part @ block.T, rows)
            if skip is not None:
                own = np.asarray(skip[here], dtype=np.int64) - start
                inside = np.flatnonzero((own >= 0) & (own < len(block)))
                keys[inside, own[inside]] = np.iinfo(np.int64).min
            both = np.concatenate([best[here], keys], axis=1)
            best[here] = np.partition(both, -top, axis=1)[:, -top:]
    best.sort(axis=1)
    best = best[:, ::-1]
    return _INDEX - (best & _INDEX), _scores(best >> 32)


def rank_metrics(
    found: NDArray[np.int64],
    relevant: Sequence[Mapping[int, float]],
    *,
    cut: int = 10,
    recalls: Sequence[int] = (1, 10, 100),
) -> dict[str, NDArray[np.float64]]:
    """Metric → (Q,) one value a query: nDCG and MRR of the first `cut` documents, recall of each of `recalls`.

    found: (Q, K) rows of documents, best first, then -1 where there are fewer.  relevant: per query, document → grade;
    grades of 0 and below are not relevant. A grade is the gain of nDCG (Järvelin & Kekäläinen 2002), as in trec_eval.
    Raises ValueError for a query without relevant documents.
    """
    if len(found) != len(relevant):
        raise ValueError(f"{len(found)} rankings for {len(relevant)} queries")
    names = [f"ndcg@{cut}", f"mrr@{cut}", *(f"recall@{k}" for k in recalls)]
    values = {name: np.zeros(len(relevant)) for name in names}
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    for row, (ranking, graded) in enumerate(zip(found, relevant, strict=True)):
        gains = {document: grade for document, grade in graded.items() if grade > 0}
        if not gains:
            raise ValueError(f"query {row} has no relevant document")
        got = np.array([gains.get(int(document), 0.0) for document in ranking])
        ideal = np.sort(np.fromiter(gains.values(), dtype=np.float64))[::-1][:cut]
        first = got[:cut]
        values[names[0]][row] = (first * discounts[: len(first)]).sum() / (ideal * discounts[: len(ideal)]).sum()
        hits = np.flatnonzero(first)
        values[names[1]][row] = 1 / (hits[0] + 1) if len(hits) else 0.0
        for k in recalls:
            values[f"recall@{k}"][row] = np.count_nonzero(got[:k]) / len(gains)
    return values


def expected_ndcg(grades: ArrayLike, relevant: ArrayLike, cut: int = 10) -> float:
    """nDCG of the first `cut` documents in a random order, on average. grades: of the ranked documents.  relevant: of
    all judged ones; some are above 0."""
    gains, ideal = (np.maximum(np.asarray(values, dtype=np.float64), 0) for values in (grades, relevant))
    if not len(gains):
        return 0.0
    discounts = 1 / np.log2(np.arange(2, cut + 2))
    ideal = np.sort(ideal)[::-1][:cut]
    return float(gains.mean() * discounts[: len(gains)].sum() / (ideal * discounts[: len(ideal)]).sum())


def cosines(ours: NDArray, theirs: NDArray) -> NDArray[np.float64]:
    """(N,) cosine of the vectors in each row of two (N, D) arrays; 0 beside a vector of zeros."""
    if ours.shape != theirs.shape:
        raise ValueError(f"vectors of shapes {ours.shape} and {theirs.shape} have no cosines")
    a, b = (np.asarray(x, dtype=np.float64) for x in (ours, theirs))
    length = np.sqrt(np.square(a).sum(1) * np.square(b).sum(1))
    return np.divide((a * b).sum(1), length, out=np.zeros(len(a)), where=length > 0)


def _agreement(queries: NDArray[np.uint8], documents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Packed bits (q, B) and (n, B) → (q, n) minus the number of bits that differ."""
    found = np.zeros((len(queries), len(documents)), dtype=np.float32)
    for ours, theirs in zip(_words(queries).T, _words(documents).T, strict=True):
        found -= _count_bits(ours[:, None] ^ theirs)
    return found


def _words(bits: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """(n, B) bytes as (n, B / 8 rounded up) words."""
    padded = np.zeros((len(bits), -(-bits.shape[1] // 8) * 8), dtype=np.uint8)
    padded[:, : bits.shape[1]] = bits
    return padded.view(np.uint64)


def _count_bits(words: NDArray[np.uint64]) -> NDArray:
    """Bits that are set in each; numpy has this since version 2."""
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    return np.unpackbits(words[..., None].view(np.uint8), axis=-1).sum(-1)


def _ready(block: NDArray, similarity: Similarity, what: str) -> NDArray:
    """(n, D) fp32, of length 1 for cosines; packed bits as they are."""
    if similarity == "hamming":
        return np.asarray(block, dtype=np.uint8)
    rows = np.asarray(block, dtype=np.float32)
    if not np.isfinite(rows).all():
        raise ValueError(f"vectors of {what} hold values that are not finite")
    if similarity == "dot":
        return rows
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)


def _keys(scores: NDArray[np.float32], rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Integers in the order of the scores (q, n), and where these are equal in the opposite order of the rows (n,)."""
    bits = (scores + np.float32(0)).view(np.int32).astype(np.int64)  # adding makes -0 a 0
    ordered = np.where(bits < 0, -(bits & 0x7FFFFFFF), bits)
    return (ordered << 32) + (_INDEX - rows)


def _scores(ordered: NDArray[np.int64]) -> NDArray[np.float32]:
    """The inverse of the order of `_keys`."""
    bits = np.where(ordered < 0, -ordered + 2**31, ordered)
    return bits.astype(np.uint32).view(np.float32)
