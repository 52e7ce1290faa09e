"""Training rows that are the same in every epoch, so that what a teacher says of them can be kept."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from compress.contracts import Batch, BatchSource
from compress.data.batches.corpus_batches import CorpusBatches
from compress.data.batches.epoch_order import micro_batches
from compress.data.batches.examples import collate
from compress.data.batches.task_batches import TaskBatches


class FixedRows(Protocol):
    """Rows 0..N-1, which `Batch.row_ids` name in every epoch.

    fingerprint: sha256 of what a model reads of each of them: ids, lengths, segments; not of labels or of any order.
    lengths: (N,) int64 tokens.
    """

    fingerprint: str
    lengths: np.ndarray

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        """These rows, alike in length side by side, in batches of at most `max_tokens` tokens (one row at least)."""
        ...


def get_fixed_rows(source: BatchSource) -> FixedRows | None:
    """The rows of a source; None where they are made or masked anew for each epoch."""
    if isinstance(source, TaskBatches):
        return _TaskRows(source)
    if isinstance(source, CorpusBatches) and source.is_static:
        return _CorpusRows(source)
    return None


class _TaskRows:
    def __init__(self, source: TaskBatches) -> None:
        examples = self._examples = source.examples
        self.lengths = examples.lengths
        self.fingerprint = _digest("task-rows-1", examples.ids, examples.offsets, examples.segments)

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        return [collate(self._examples, part) for part in micro_batches(rows, self.lengths, max_tokens)]


class _CorpusRows:
    def __init__(self, source: CorpusBatches) -> None:
        self._source = source
        self.lengths = source.lengths
        self.fingerprint = _digest("corpus-rows-1", *source.content())

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        parts = micro_batches(rows, self.lengths, max_tokens)
        return [batch for part in parts for batch in self._source.batches_of(part, max_tokens)]


def _digest(rule: str, *arrays: np.ndarray) -> str:
    """Of numbers, whatever width they are held in."""
    digest = hashlib.sha256(json.dumps([rule, [len(a) for a in arrays]]).encode())
    for array in arrays:
        for start in range(0, len(array), 1 << 22):  # a piece at a time: the copy is eight bytes a number
            digest.update(array[start : start + (1 << 22)].astype("<i8").tobytes())
    return digest.hexdigest()
