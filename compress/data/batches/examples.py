"""Encoded rows: all token ids end to end with offsets, and any selection of them as one packed batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from compress.contracts import QUERIES, Batch
from compress.data.batches.ragged import content, gather
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.errors import UserError
from compress.storage.spill import FAULT, Spool, concatenate, note_read, pieces

TEXTS = "texts"
"""Of a batch whose rows another tokenizer may have to read: their `TextSource` (`Batch.extra`)."""


@dataclass(frozen=True)
class TextSource:
    """The texts that examples were made of. encode: (tokenizer, (n,) places) → those texts, encoded.  places: (N,) of
    the text of each example."""

    encode: Callable[[Tokenizer, np.ndarray], Examples]
    places: np.ndarray

    def take(self, chosen: np.ndarray) -> TextSource:
        """Of the examples at these positions."""
        return replace(self, places=self.places[chosen])

    def encoded(self, tokenizer: Tokenizer) -> Examples:
        """The texts as this tokenizer reads them."""
        return self.encode(tokenizer, self.places)


@dataclass(frozen=True)
class Examples:
    """N rows of T tokens in all. A row of the data may be several of them (windows), which then share its number.

    ids: (T,) int32.  offsets: (N+1,) int64, row i is ids[offsets[i]:offsets[i+1]].  segments: (T,) uint8.
    special: (T,) bool, true on [CLS], [SEP] and the like.  numbers: (N,) int64, 1-based rows of the source.
    labels: one a row, (N, ...): classes int64, scores float32, several labels (N, C) float32; tags (T,) int64, one a
    token; UNLABELLED (NaN for floats) where there is none.  cut: rows that were longer than the maximal length.
    fingerprint: sha256 of content and encoding.
    words: of a task that answers words, (T,) int32: the word whose first piece this is, -1 elsewhere.
    places: (T, 2) int32: the characters that a piece stands for, from and up to, in the text of its segment.
    notes: what a person should hear about the encoding.
    queries: of a task that ranks, (N,) int64, equal for the documents of one query, which are side by side.
    texts: where several models with tokenizers of their own read the rows.
    """

    ids: np.ndarray
    offsets: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray
    cut: int
    fingerprint: str
    words: np.ndarray | None = None
    places: np.ndarray | None = None
    notes: tuple[str, ...] = ()
    queries: np.ndarray | None = None
    texts: TextSource | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64 tokens of each row."""
        return np.diff(self.offsets)

    def take(self, indices: np.ndarray | Sequence[int]) -> Examples:
        """The rows at `indices`, in that order; the fingerprint follows."""
        chosen = np.asarray(indices, dtype=np.int64)
        tokens, offsets = gather(self.offsets, chosen)
        return replace(
            self,
            ids=self.ids[tokens],
            offsets=offsets,
            segments=self.segments[tokens],
            special=self.special[tokens],
            labels=self.labels[chosen if self.words is None else tokens],
            numbers=self.numbers[chosen],
            fingerprint=hashlib.sha256(self.fingerprint.encode() + chosen.astype("<i8").tobytes()).hexdigest(),
            words=None if self.words is None else self.words[tokens],
            places=None if self.places is None else self.places[tokens],
            queries=None if self.queries is None else self.queries[chosen],
            texts=None if self.texts is None else self.texts.take(chosen),
        )


def join(*parts: Examples) -> Examples:
    """Several sets of rows as one, e.g. labelled rows and rows that only a teacher labels."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(p.ids) for p in parts)])
    offsets = [p.offsets[1:] + start for p, start in zip(parts, starts)]
    return Examples(
        concatenate([p.ids for p in parts]),
        concatenate([np.zeros(1, dtype=np.int64), *offsets]),
        concatenate([p.segments for p in parts]),
        concatenate([p.special for p in parts]),
        concatenate([p.labels for p in parts]),
        concatenate([p.numbers for p in parts]),
        sum(p.cut for p in parts),
        hashlib.sha256("+".join(p.fingerprint for p in parts).encode()).hexdigest(),
        _all([p.words for p in parts]),
        _all([p.places for p in parts]),
        tuple(note for p in parts for note in p.notes),
        _all([_after(parts[:i], p.queries) for i, p in enumerate(parts)]),
    )


def _after(parts: Sequence[Examples], queries: np.ndarray | None) -> np.ndarray | None:
    """Numbers of queries that none of the parts before has."""
    before = [int(p.queries.max()) + 1 for p in parts if p.queries is not None and len(p.queries)]
    return None if queries is None else queries + sum(before)


def _all(arrays: Sequence[np.ndarray | None]) -> np.ndarray | None:
    there = [array for array in arrays if array is not None]
    return concatenate(there) if len(there) == len(arrays) else None


# --- encoding ---------------------------------------------------------------------------------------------------


def encode_rows(tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
    """Rows of a table → Examples with their labels, one example a row."""
    assert isinstance(rows.labels, np.ndarray)
    parts = (tokenizer.encode_batch(texts, pairs, max_length=max_length) for texts, pairs in rows.slices())
    return examples_of(tokenizer, parts, rows.labels, rows.numbers, max_length)


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
) -> Examples:
    """Raw texts → Examples without labels."""
    part = tokenizer.encode_batch(texts, pairs, max_length=max_length)
    labels = np.full(len(texts), UNLABELLED, dtype=np.int64)
    return examples_of(tokenizer, [part], labels, np.arange(1, len(texts) + 1, dtype=np.int64), max_length)


def examples_of(
    tokenizer: Tokenizer, parts: Iterable[Any], labels: np.ndarray, numbers: np.ndarray, max_length: int, **beside: Any
) -> Examples:
    """What the tokenizer made of consecutive rows (`EncodedRows` parts), with labels by row, or by token where `words`
    come with them. beside: words, places, notes of the Examples. Raises UserError when there is no row."""
    if not len(numbers):
        raise UserError("there are no rows to encode")
    check_length(max_length)
    spools = [Spool(np.int32), Spool(np.uint8), Spool(bool), Spool(np.int64)]
    spools[3].append(np.zeros(1))
    tokens = cut = rows = 0
    for part in parts:
        _require_ids(part.ids, part.offsets, numbers[rows:], tokenizer)
        rows += len(part.offsets) - 1
        special = tokenizer.special_mask(part.ids)
        for spool, values in zip(spools, (part.ids, part.segments, special, part.offsets[1:] + tokens), strict=True):
            spool.append(values)
        tokens, cut = tokens + len(part.ids), cut + part.cut
    ids, segments, special, offsets = (spool.finish() for spool in spools)
    digest = hashlib.sha256(json.dumps(["examples-1", tokenizer.fingerprint, max_length]).encode())
    for array, kind in ((ids, "<i4"), (offsets, "<i8"), (segments, "u1")):
        for piece in pieces(array):
            digest.update(piece.astype(kind).tobytes())
    for data in content(labels):
        digest.update(data)
    return Examples(ids, offsets, segments, special, labels, numbers, cut, digest.hexdigest(), **beside)


def _require_ids(ids: np.ndarray, offsets: np.ndarray, numbers: np.ndarray, tokenizer: Tokenizer) -> None:
    """Raise UserError for a token that the vocabulary lacks: a GPU would end the process when it looks it up."""
    wrong = np.flatnonzero((ids < 0) | (ids >= tokenizer.vocabulary_size))
    if len(wrong):
        row = numbers[np.searchsorted(offsets, wrong[0], side="right") - 1]
        raise UserError(
            f"row {row:,} has the token id {ids[wrong[0]]:,}",
            where=tokenizer.where,
            why=f"the vocabulary has ids up to {tokenizer.vocabulary_size - 1:,}",
            do="use the tokenizer that belongs to this model",
        )


def require_labels(examples: Examples, classes: int, where: str) -> None:
    """Raise UserError for a label that is none of so many classes, or no place in its row: a GPU would end the process
    when the loss reads it. Scores, and several labels a row, may be any number."""
    labels = examples.labels
    if np.issubdtype(labels.dtype, np.floating):
        return
    spans = labels.ndim > 1
    ends = examples.lengths[:, None] if spans else np.full(1, classes)
    wrong = np.argwhere((labels != UNLABELLED) & ((labels < 0) | (labels >= ends)))
    if not len(wrong):
        return
    first = int(wrong[0][0])
    row = first if examples.words is None else int(np.searchsorted(examples.offsets, first, side="right")) - 1
    found = labels[tuple(wrong[0])]
    why = f"the row has {examples.lengths[row]:,} tokens" if spans else f"the model has {classes:,} classes, from 0 on"
    what = "answer position" if spans else "label"
    raise UserError(f"row {examples.numbers[row]:,} has the {what} {found:,}", where=where, why=why)


# --- batches ----------------------------------------------------------------------------------------------------


def collate(examples: Examples, rows: np.ndarray) -> Batch:
    """The rows at these positions as one packed batch; `row_ids` are the positions."""
    note_read(5 * FAULT * len(rows))  # of ids, segments, special tokens, offsets and labels
    tokens, offsets = gather(examples.offsets, rows)
    batch = pack(
        examples.ids[tokens],
        offsets,
        segments=examples.segments[tokens],
        special=examples.special[tokens],
        row_ids=rows,
        labels=examples.labels[rows if examples.words is None else tokens],
        answered=None if examples.words is None else examples.words[tokens] >= 0,
        queries=None if examples.queries is None else examples.queries[rows],
    )
    if examples.texts is None:
        return batch
    return replace(batch, extra={**batch.extra, TEXTS: examples.texts.take(rows)})


def take_rows(batch: Batch, rows: np.ndarray) -> Batch:
    """Some rows of a packed batch on the CPU, in that order: what a model reads of them, without labels."""
    tokens, offsets = gather(batch.cu_seqlens.numpy(), rows)
    chosen = torch.from_numpy(tokens)
    return Batch(
        input_ids=batch.input_ids[chosen],
        segment_ids=batch.segment_ids[chosen],
        position_ids=batch.position_ids[chosen],
        cu_seqlens=_tensor(offsets),
        max_length=int(np.diff(offsets).max()),
        row_ids=batch.row_ids[torch.from_numpy(rows)],
        special_mask=None if batch.special_mask is None else batch.special_mask[chosen],
    )


def pack(
    ids: np.ndarray,
    offsets: np.ndarray,
    *,
    segments: np.ndarray,
    special: np.ndarray,
    row_ids: np.ndarray,
    labels: np.ndarray | None = None,
    answered: np.ndarray | None = None,
    mlm_positions: np.ndarray | None = None,
    mlm_labels: np.ndarray | None = None,
    pair_labels: np.ndarray | None = None,
    queries: np.ndarray | None = None,
) -> Batch:
    """NumPy arrays of one packed micro-batch → Batch."""
    lengths = np.diff(offsets)
    positions = np.arange(len(ids)) - np.repeat(offsets[:-1], lengths)
    return Batch(
        input_ids=_tensor(ids),
        segment_ids=_tensor(segments),
        position_ids=_tensor(positions),
        cu_seqlens=_tensor(offsets),
        max_length=int(lengths.max()),
        row_ids=_tensor(row_ids),
        labels=None if labels is None else _labels(labels),
        answered=None if answered is None else torch.from_numpy(np.ascontiguousarray(answered)),
        mlm_positions=None if mlm_positions is None else _tensor(mlm_positions),
        mlm_labels=None if mlm_labels is None else _tensor(mlm_labels),
        pair_labels=None if pair_labels is None else _tensor(pair_labels),
        special_mask=torch.from_numpy(np.ascontiguousarray(special)),
        extra={} if queries is None else {QUERIES: _tensor(queries)},
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))


def _labels(array: np.ndarray) -> torch.Tensor:
    """Scores stay numbers, classes and positions are whole."""
    if np.issubdtype(array.dtype, np.floating):
        return torch.from_numpy(np.ascontiguousarray(array, dtype=np.float32))
    return _tensor(array)
