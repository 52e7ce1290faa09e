"""Rows for a task out of a large text: the passages that are nearest to its training rows, read in one stream.

A passage is scored by its nearest training row: the cosine of their words, weighted by how rare each is (TF-IDF with
binary counts, hashed), or of the vectors that a model gives them. Self-training on text chosen by vectors: SentAugment
(Du et al., arXiv 2010.02194).
"""

from __future__ import annotations

import hashlib
import heapq
import json
import logging
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Protocol

import numpy as np
import pyarrow as pa

from compress.contracts import Watch, unwatched
from compress.data.reading import file_corpus
from compress.data.tables.table import WORD_END, Rows, spread_places
from compress.data.task import Task
from compress.data.text.baselines import words_of
from compress.errors import ExitCode, UserError, format_count
from compress.storage import atomic, safe
from compress.storage.cache import cache_folder

_log = logging.getLogger("compress.data")

HASHED = 1 << 20
"""Features: what words are hashed to."""
QUERIES = 2000
"""Most training rows that passages are compared with, evenly spaced."""
COUNTED = 20_000
"""Passages in which the frequency of words is counted."""
PER_ROW, LEAST, MOST = 10, 1000, 100_000
"""Rows that are taken where no number is given: for each training row, and the bounds."""
LONGER = 1.5
"""How much longer than the long training rows (95 % are shorter) a passage may be."""
AT_ONCE = 2048  # passages compared in one product
SHARE = 4
"""How many times the even share of the rows may be nearest to one training row."""
NEAR = 0.8
"""Share of common words (Jaccard) from which on a passage counts as a copy of a validation or test row."""
FORMAT = "pool-1"
"""Part of the names of selections that are kept: raised when the same text would give another one."""
MOST_BYTES = 1 << 30  # of a kept selection
_SENTENCE = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])|\n+")


@dataclass(frozen=True)
class TextVectors:
    """A model that passages are compared by. embed: texts → (N, D) float32.  mark: what its vectors depend on, by which
    a selection is found again.  watch: shows how many passages were read.  stop: raises Stopped where a signal asked.
    """

    embed: Callable[[Sequence[str]], np.ndarray]
    mark: Sequence[object]
    watch: Watch = unwatched
    stop: Callable[[], None] = lambda: None


@dataclass(frozen=True)
class PoolRequest:
    """name: of the text, as a corpus is named.  rows: how many to take; None: by the number of training rows.
    vectors: makes the model that passages are compared by; None: by their words."""

    name: str
    rows: int | None = None
    vectors: Callable[[], TextVectors] | None = None


def count_default_rows(train: int) -> int:
    """How many rows are taken for so many training rows, where no number is requested."""
    return min(max(PER_ROW * train, LEAST), MOST)


def select_rows(
    request: PoolRequest, task: Task, splits: Mapping[str, Rows], labels: Sequence[str], notes: list[str]
) -> Rows:
    """The passages of a text that are nearest to the training rows, without labels; `notes` says how many were read,
    left out and missing.

    Raises UserError for tasks that read more than one text, and where no passage has a word in common with them.
    """
    if task.text_roles not in (("text",), ("words",)) and "text_pair" in splits["train"].columns:
        raise UserError(
            f"rows for {task.kind} cannot be taken from plain text", where="--pool", why="a row has two texts",
            do="give complete rows with --unlabelled",
        )  # fmt: skip
    if task.text_roles[0] not in ("text", "words"):
        raise UserError(f"rows for {task.kind} cannot be taken from plain text", where="--pool", do="use --unlabelled")
    corpus = file_corpus.open_corpus(request.name)
    train = _texts(splits["train"])
    wanted = request.rows or count_default_rows(len(train))
    lengths = [len(words_of(text)) for text in train]
    shortest, longest = int(np.quantile(lengths, 0.25)), math.ceil(LONGER * float(np.quantile(lengths, 0.95)))

    def read() -> Iterator[str]:
        for document in corpus.list_texts():  # what a corpus holds out is text like the rest
            yield from cut_passages(document, shortest, longest)

    if request.vectors is None:
        chosen = _Nearest(train, wanted, _WordRanking())
        seen, found = chosen.read(read()), chosen.in_order()
    else:
        seen, found = _load_or_rank(request.vectors(), train, wanted, corpus.fingerprint, read)
    measured = [text for split in ("validation", "test") if split in splits for text in _texts(splits[split])]
    copies = _find_copies([text for _, text in found], measured)
    known = {_folded(text) for text in train}
    kept = [text for (_, text), copy in zip(found, copies, strict=True) if not copy and _folded(text) not in known]
    taken = kept[:wanted]
    if not taken:
        what = "all passages are copies of labelled rows" if found else "no passage is like the training rows"
        raise UserError(what, where=f"--pool {request.name}", do="use other text")
    notes.append(
        f"pool: {len(taken):,} of {format_count(seen, 'passage')} of {corpus.name} are taken, the nearest to the "
        f"training rows by {'words' if request.vectors is None else 'vectors of the teacher'}"
    )
    if copies.any():
        notes.append(
            f"pool: {format_count(int(copies.sum()), 'passage')} left out as near-copies of validation or test rows"
        )
    if len(taken) < wanted:
        _log.warning("the pool has only %s of the %s rows requested", f"{len(taken):,}", f"{wanted:,}")
    column = pa.chunked_array([pa.array(taken, pa.large_string())])
    role = task.text_roles[0]
    values, missing = task.read_plain_text(role, column, request.name)
    if missing.any():
        values = values.filter(pa.array(~missing))
    columns = {role: values}
    count = len(values)
    return Rows(columns, task.make_missing_labels(columns, count, labels), np.arange(1, count + 1, dtype=np.int64))


def cut_passages(document: str, shortest: int, longest: int) -> Iterator[str]:
    """Whole sentences of a document, joined until they have `shortest` words; those of more than `longest` words are
    left out, as are leftovers of fewer."""
    held: list[str] = []
    count = 0
    for sentence in _SENTENCE.split(document):
        sentence = sentence.strip()
        words = len(words_of(sentence))
        if not words:
            continue
        if count + words > longest:
            held, count = [], 0
            if words > longest:
                continue
        held.append(sentence)
        count += words
        if count >= shortest:
            yield " ".join(held)
            held, count = [], 0


Entry = tuple[float, int, str]
"""Similarity, minus the place in the text, passage."""


def _push(heap: list[Entry], entry: Entry, room: int) -> Entry | None:
    """Put an entry among the best; returns the one that has no room."""
    if len(heap) < room:
        heapq.heappush(heap, entry)
        return None
    return heapq.heappushpop(heap, entry)


class _Ranking(Protocol):
    """How alike passages and training rows are."""

    def learn(self, queries: Sequence[str], first: Sequence[str]) -> None:
        """Called once. queries: the training rows.  first: the first passages."""
        ...

    def find_nearest(self, part: Sequence[str]) -> Iterator[tuple[int, int, float]]:
        """(place in `part`, training row, similarity) of each passage that is at all like a training row."""
        ...


class _WordRanking:
    """By the words that they have in common, each weighted by how rare it is."""

    def learn(self, queries: Sequence[str], first: Sequence[str]) -> None:
        self.weights = _count_rarity([*queries, *first])
        self.matrix = self._vectors(queries).T.tocsr()

    def find_nearest(self, part: Sequence[str]) -> Iterator[tuple[int, int, float]]:
        scores = (self._vectors(part) @ self.matrix).tocsr()
        for i in range(len(part)):
            start, end = scores.indptr[i], scores.indptr[i + 1]
            if start < end:
                best = start + int(scores.data[start:end].argmax())
                yield i, int(scores.indices[best]), float(scores.data[best])

    def _vectors(self, texts: Sequence[str]):
        """(N, HASHED) sparse, rows of length 1."""
        matrix = _features(texts)
        matrix.data = self.weights[matrix.indices]
        lengths = np.sqrt(np.asarray(matrix.multiply(matrix).sum(1)).ravel())
        matrix.data /= np.repeat(np.maximum(lengths, 1e-12), np.diff(matrix.indptr))
        return matrix


class _VectorRanking:
    """By the cosine of their vectors, from the point between the training rows and the text: what all vectors of a
    model have in common says nothing, and what tells the training rows from the text says much."""

    def __init__(self, vectors: TextVectors) -> None:
        self.vectors = vectors

    def learn(self, queries: Sequence[str], first: Sequence[str]) -> None:
        ours = self.vectors.embed(queries)
        self.center = (ours.mean(0) + self.vectors.embed(first[:AT_ONCE] or queries).mean(0)) / 2
        self.matrix = self._normalize(ours).T

    def find_nearest(self, part: Sequence[str]) -> Iterator[tuple[int, int, float]]:
        self.vectors.stop()
        scores = self._normalize(self.vectors.embed(part)) @ self.matrix
        best = scores.argmax(1)
        yield from zip(range(len(part)), best.tolist(), scores.max(1).tolist(), strict=True)

    def _normalize(self, vectors: np.ndarray) -> np.ndarray:
        centered = vectors - self.center
        return centered / np.maximum(np.linalg.norm(centered, axis=1, keepdims=True), 1e-12)


def _load_or_rank(
    vectors: TextVectors, train: Sequence[str], wanted: int, fingerprint: str, read: Callable[[], Iterator[str]]
) -> tuple[int, list[tuple[float, str]]]:
    """(how many passages there are, the nearest in order). A model takes long to read a large text: what was selected
    is kept on the disk, for a run that goes on and for other seeds."""
    told = json.dumps([FORMAT, fingerprint, wanted, QUERIES, SHARE, COUNTED, *map(str, vectors.mark)])
    digest = hashlib.sha256(told.encode())
    for text in train:
        digest.update(json.dumps(text).encode())
    file = cache_folder() / "pool" / f"{digest.hexdigest()[:32]}.json"
    kept = _read_selection(file)
    if kept is not None:
        return kept
    chosen = _Nearest(train, wanted, _VectorRanking(vectors))
    with vectors.watch("pool: passages compared", None, "passages") as progress:
        seen, found = chosen.read(read(), progress.update), chosen.in_order()
    atomic.write_json(file, {"seen": seen, "passages": found})
    return seen, found


def _read_selection(file: Path) -> tuple[int, list[tuple[float, str]]] | None:
    """What was kept; None where there is nothing, or nothing that can be used."""
    if not file.is_file():
        return None
    try:
        held = safe.read_json(file, MOST_BYTES)
        return int(held["seen"]), [(float(score), str(text)) for score, text in held["passages"]]
    except (UserError, KeyError, TypeError, ValueError):
        _log.warning("%s is damaged and will be rebuilt", file)
        return None


class _Nearest:
    """The best passages for each training row, so many that one row alone cannot fill the pool."""

    def __init__(self, train: Sequence[str], rows: int, ranking: _Ranking) -> None:
        places = spread_places(len(train), QUERIES)
        self.queries: list[str] = [train[int(place)] for place in places]
        self.ranking = ranking
        # More are held than are taken: some turn out to be copies.
        self.room = max(4, math.ceil(SHARE * rows / len(self.queries)))
        self.rows = rows
        self.heaps: list[list[Entry]] = [[] for _ in self.queries]
        self.beyond: list[Entry] = []
        self.held: set[int] = set()

    def read(self, passages: Iterator[str], told: Callable[[int], None] = lambda _: None) -> int:
        """Read all passages; returns how many there were. told: how many so far."""
        first = list(islice(passages, COUNTED))
        self.ranking.learn(self.queries, first)
        seen = 0
        for part in _parts(first, passages):
            for i, query, score in self.ranking.find_nearest(part):
                self._offer(query, score, seen + i, part[i])
            seen += len(part)
            told(seen)
        return seen

    def in_order(self) -> list[tuple[float, str]]:
        """(similarity, passage), the nearest first; those of which a training row had enough already come last."""
        within, beyond = [one for heap in self.heaps for one in heap], self.beyond
        return [(score, text) for part in (within, beyond) for score, _, text in sorted(part, reverse=True)]

    def _offer(self, query: int, score: float, number: int, text: str) -> None:
        mark = zlib.crc32(_folded(text).encode())
        if mark in self.held:
            return
        self.held.add(mark)
        lost: Entry | None = (score, -number, text)
        for heap, room in ((self.heaps[query], self.room), (self.beyond, self.rows)):
            if lost is None:
                return
            lost = _push(heap, lost, room)
        if lost is not None:
            self.held.discard(zlib.crc32(_folded(lost[2]).encode()))


def _parts(first: Sequence[str], rest: Iterator[str]) -> Iterator[list[str]]:
    for start in range(0, len(first), AT_ONCE):
        yield list(first[start : start + AT_ONCE])
    while part := list(islice(rest, AT_ONCE)):
        yield part


def _features(texts: Sequence[str]):
    """(N, HASHED) sparse, 1 for each different word of a text."""
    try:
        from scipy.sparse import csr_matrix
    except ImportError as error:
        code = ExitCode.ENVIRONMENT
        raise UserError("--pool needs the package scipy", do="pip install scipy", code=code) from error

    rows = [sorted({zlib.crc32(word.encode()) % HASHED for word in words_of(text)}) for text in texts]
    offsets = np.cumsum([0, *map(len, rows)])
    places = np.fromiter((place for row in rows for place in row), np.int32, int(offsets[-1]))
    return csr_matrix((np.ones(len(places), np.float32), places, offsets), shape=(len(texts), HASHED))


def _count_rarity(texts: Sequence[str]) -> np.ndarray:
    """(HASHED,) float32: the logarithm of how rarely a word occurs."""
    counts = np.asarray(_features(texts).sum(0)).ravel()
    return np.log((1 + len(texts)) / (1 + counts)).astype(np.float32)


def _find_copies(texts: Sequence[str], measured: Sequence[str]) -> np.ndarray:
    """(N,) bool: texts that have nearly all words in common with a row that models are measured on."""
    found = np.zeros(len(texts), dtype=bool)
    if not measured:
        return found
    theirs = _features(measured)
    sizes, across = np.diff(theirs.indptr), theirs.T.tocsr()
    for start in range(0, len(texts), AT_ONCE):
        ours = _features(texts[start : start + AT_ONCE])
        common = (ours @ across).tocoo()
        union = np.diff(ours.indptr)[common.row] + sizes[common.col] - common.data
        found[start + common.row[common.data >= NEAR * union]] = True
    return found


def _texts(rows: Rows) -> list[str]:
    return [" ".join(text.replace(WORD_END, " ") for text in row) for part in rows.contents() for row in part]


def _folded(text: str) -> str:
    return " ".join(words_of(text))
