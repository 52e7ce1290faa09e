"""Encoded rows: all token ids end to end with offsets, and any selection of them as one packed batch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from compress.contracts import Batch
from compress.data.table import UNLABELLED, Rows
from compress.data.tokenizer import Tokenizer, check_length
from compress.errors import UserError


@dataclass(frozen=True)
class Examples:
    """N rows of T tokens in all.

    ids: (T,) int32.  offsets: (N+1,) int64, row i is ids[offsets[i]:offsets[i+1]].  segments: (T,) uint8.
    special: (T,) bool, true on [CLS], [SEP] and the like.  labels: (N,) int64, UNLABELLED where there is none.
    numbers: (N,) int64, 1-based rows of the source.  cut: rows that were longer than the maximal length.
    fingerprint: sha256 of content and encoding.
    """

    ids: np.ndarray
    offsets: np.ndarray
    segments: np.ndarray
    special: np.ndarray
    labels: np.ndarray
    numbers: np.ndarray
    cut: int
    fingerprint: str

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
        mark = hashlib.sha256(self.fingerprint.encode() + chosen.astype("<i8").tobytes()).hexdigest()
        return Examples(
            self.ids[tokens],
            offsets,
            self.segments[tokens],
            self.special[tokens],
            self.labels[chosen],
            self.numbers[chosen],
            self.cut,
            mark,
        )


def join(*parts: Examples) -> Examples:
    """Several sets of rows as one, e.g. labelled rows and rows that only a teacher labels."""
    if len(parts) == 1:
        return parts[0]
    starts = np.cumsum([0, *(len(p.ids) for p in parts)])
    offsets = [p.offsets[1:] + start for p, start in zip(parts, starts)]
    return Examples(
        np.concatenate([p.ids for p in parts]),
        np.concatenate([np.zeros(1, dtype=np.int64), *offsets]),
        np.concatenate([p.segments for p in parts]),
        np.concatenate([p.special for p in parts]),
        np.concatenate([p.labels for p in parts]),
        np.concatenate([p.numbers for p in parts]),
        sum(p.cut for p in parts),
        hashlib.sha256("+".join(p.fingerprint for p in parts).encode()).hexdigest(),
    )


def gather(offsets: np.ndarray, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(positions of all tokens of `rows`, end to end; their new offsets), without a Python loop."""
    starts, lengths = offsets[rows], offsets[rows + 1] - offsets[rows]
    bounds = np.zeros(len(rows) + 1, dtype=np.int64)
    np.cumsum(lengths, out=bounds[1:])
    return np.repeat(starts - bounds[:-1], lengths) + np.arange(bounds[-1]), bounds


# --- encoding ---------------------------------------------------------------------------------------------------


def encode_rows(tokenizer: Tokenizer, rows: Rows, *, max_length: int) -> Examples:
    """Rows of a table → Examples with their labels."""
    parts = [tokenizer.encode_batch(texts, pairs, max_length=max_length) for texts, pairs in rows.slices()]
    return _examples(tokenizer, parts, rows.labels, rows.numbers, max_length)


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str], pairs: Sequence[str] | None = None, *, max_length: int
) -> Examples:
    """Raw texts → Examples without labels."""
    part = tokenizer.encode_batch(texts, pairs, max_length=max_length)
    labels = np.full(len(texts), UNLABELLED, dtype=np.int64)
    return _examples(tokenizer, [part], labels, np.arange(1, len(texts) + 1, dtype=np.int64), max_length)


def _examples(tokenizer, parts, labels: np.ndarray, numbers: np.ndarray, max_length: int) -> Examples:
    if not len(labels):
        raise UserError("there is no row to encode")
    check_length(max_length)
    starts = np.cumsum([0, *(len(p.ids) for p in parts)])
    ids = np.concatenate([p.ids for p in parts])
    segments = np.concatenate([p.segments for p in parts])
    offsets = np.concatenate([np.zeros(1, np.int64), *(p.offsets[1:] + s for p, s in zip(parts, starts))])
    digest = hashlib.sha256(json.dumps(["examples-1", tokenizer.fingerprint, max_length]).encode())
    for array in (ids.astype("<i4"), offsets.astype("<i8"), segments, labels.astype("<i8")):
        digest.update(array.tobytes())
    special = tokenizer.special_mask(ids)
    return Examples(ids, offsets, segments, special, labels, numbers, sum(p.cut for p in parts), digest.hexdigest())


# --- batches ----------------------------------------------------------------------------------------------------


def collate(examples: Examples, rows: np.ndarray) -> Batch:
    """The rows at these positions as one packed batch; `row_ids` are the positions."""
    tokens, offsets = gather(examples.offsets, rows)
    return pack(
        examples.ids[tokens],
        offsets,
        segments=examples.segments[tokens],
        special=examples.special[tokens],
        row_ids=rows,
        labels=examples.labels[rows],
    )


def pack(
    ids: np.ndarray,
    offsets: np.ndarray,
    *,
    segments: np.ndarray,
    special: np.ndarray,
    row_ids: np.ndarray,
    labels: np.ndarray | None = None,
    mlm_positions: np.ndarray | None = None,
    mlm_labels: np.ndarray | None = None,
    pair_labels: np.ndarray | None = None,
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
        labels=None if labels is None else _tensor(labels),
        mlm_positions=None if mlm_positions is None else _tensor(mlm_positions),
        mlm_labels=None if mlm_labels is None else _tensor(mlm_labels),
        pair_labels=None if pair_labels is None else _tensor(pair_labels),
        special_mask=torch.from_numpy(np.ascontiguousarray(special)),
    )


def _tensor(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(array, dtype=np.int64))
