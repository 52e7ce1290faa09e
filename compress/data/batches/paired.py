"""The same rows as two tokenizers cut them: each batch for the student carries the teacher's batch of its rows."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from compress.contracts import Batch, BatchSource
from compress.contracts.parcel import Parcel
from compress.data.batches.examples import Examples, collate
from compress.data.batches.ragged import gather
from compress.data.text.alignment import Spans
from compress.errors import UserError

BESIDE = "beside"
"""Where `Batch.extra` holds a `TeacherBatch`."""


@dataclass(frozen=True)
class CommonSpans:
    """S common spans of a batch's B rows, packed like pieces.

    ours: (T,) int64, the span of each piece of the student's batch.  theirs: (T',) likewise of the teacher's.
    begins: (S,) the first piece of the student's in each.  cu_seqlens: (B+1,).  longest: spans of one row.
    host: of spans on an accelerator, the same on the CPU.
    """

    ours: Tensor
    theirs: Tensor
    begins: Tensor
    cu_seqlens: Tensor
    longest: int
    host: CommonSpans | None = None

    def to(self, device: torch.device | str) -> CommonSpans:
        """The same spans on `device`, by one copy."""
        kind = torch.device(device).type
        tensors = {name: getattr(self, name) for name in ("ours", "theirs", "begins", "cu_seqlens")}
        there = Parcel({"": tensors}, pinned=kind == "cuda").to(device)[""]
        return replace(self, **there, host=None if kind == "cpu" else self.host or self)

    def batch(self, batch: Batch) -> Batch:
        """The student's batch with spans in the place of pieces, each told by its first piece."""
        return replace(
            batch,
            input_ids=batch.input_ids[self.begins],
            segment_ids=batch.segment_ids[self.begins],
            position_ids=batch.position_ids[self.begins],
            cu_seqlens=self.cu_seqlens,
            max_length=self.longest,
            special_mask=None if batch.special_mask is None else batch.special_mask[self.begins],
            host=None if self.host is None else self.host.batch(batch.on_host),
            grid=None,
            parcel=None,
        )


@dataclass(frozen=True)
class TeacherBatch:
    """What a batch carries for a teacher with another tokenizer. batch: the same rows in the same order, as the teacher
    reads them.  spans: what pieces of both are compared on; None where nothing reads pieces."""

    batch: Batch
    spans: CommonSpans | None = None

    def to(self, device: torch.device | str) -> TeacherBatch:
        return TeacherBatch(self.batch.to(device), None if self.spans is None else self.spans.to(device))


def get_teacher_batch(batch: Batch) -> TeacherBatch:
    """What a batch of `PairedRows` carries."""
    return batch.extra[BESIDE]


@dataclass(frozen=True)
class PairedRows:
    """N rows as student and teacher read them. spans: common ones of all rows, None where nothing reads pieces."""

    student: Examples
    teacher: Examples
    spans: Spans | None = None

    def __post_init__(self) -> None:
        if not np.array_equal(self.student.numbers, self.teacher.numbers):
            raise UserError("the two tokenizers split these texts into different rows", do="use data.long_text: cut")

    @property
    def fingerprint(self) -> str:
        """sha256 of what both tokenizers made of the rows."""
        whole = f"paired-1 {self.student.fingerprint} {self.teacher.fingerprint} {self.spans is not None}"
        return hashlib.sha256(whole.encode()).hexdigest()

    def add_teacher_batch(self, batch: Batch) -> Batch:
        """The student's batch of some of the rows (on the host), with the teacher's beside it."""
        rows = batch.row_ids.numpy()
        made = TeacherBatch(collate(self.teacher, rows), None if self.spans is None else self._common(self.spans, rows))
        return replace(batch, extra={**batch.extra, BESIDE: made})

    def _common(self, spans: Spans, rows: np.ndarray) -> CommonSpans:
        counts = spans.counts[rows]
        bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
        both = []
        for examples, numbers in ((self.student, spans.first), (self.teacher, spans.second)):
            pieces, offsets = gather(examples.offsets, rows)
            both.append(numbers[pieces] + np.repeat(bounds[:-1], np.diff(offsets)))
        ours, theirs = both
        begins = np.flatnonzero(np.r_[True, ours[1:] != ours[:-1]])
        return CommonSpans(_tensor(ours), _tensor(theirs), _tensor(begins), _tensor(bounds), int(counts.max()))


def _tensor(values: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(values, dtype=np.int64))


class PairedBatches:
    """A BatchSource: the steps of `source`, which reads `rows.student`, each batch with the teacher's beside it."""

    def __init__(self, source: BatchSource, rows: PairedRows) -> None:
        self._source, self.rows = source, rows
        self.fingerprint = hashlib.sha256(f"{source.fingerprint} {rows.fingerprint}".encode()).hexdigest()

    def shard(self, rank: int, world: int) -> PairedBatches:
        """The same steps as read by one of `world` processes, under the same fingerprint."""
        return PairedBatches(self._source.shard(rank, world), self.rows)  # pyright: ignore[reportAttributeAccessIssue]

    def steps(self, epoch: int) -> int:
        """Optimizer steps in this epoch."""
        return self._source.steps(epoch)

    def step(self, epoch: int, index: int) -> Sequence[Batch]:
        """The micro-batches of one optimizer step."""
        return [self.rows.add_teacher_batch(batch) for batch in self._source.step(epoch, index)]
