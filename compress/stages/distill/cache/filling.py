"""Asks a teacher for the answers that a cache lacks, shard by shard, in one process or as one of several workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import torch

from compress.contracts import Batch, Progress, Teacher
from compress.data.batches.ragged import bounds_of, gather
from compress.stages.distill.cache.fields import Field, counts, live_needs
from compress.stages.distill.cache.shards import Division, Shards
from compress.stages.shared.stage import StageServices
from compress.storage import claims

FILL_TOKENS = 8192
"""Real tokens of one batch that the teacher answers while a cache is filled."""


def open_fields(cache: Path, fields: Iterable[Field], division: Division) -> dict[Field, Shards]:
    """Each field with its shards in a cache folder, of which some may be missing."""
    return {field: Shards(cache / "fields" / field.name, field.columns, division) for field in fields}


class AskedRows(Protocol):
    """Rows that a teacher is asked about, by their numbers: see `FixedRows`."""

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]: ...


@dataclass(frozen=True)
class Filling:
    """Which answers are wanted, to which rows. fields: each with its shards, divided by `division`."""

    fields: Mapping[Field, Shards]
    division: Division
    rows: AskedRows

    @property
    def missing(self) -> dict[int, list[Field]]:
        """Shard → the fields that it lacks."""
        found: dict[int, list[Field]] = {}
        for field, shards in self.fields.items():
            for shard in shards.list_missing():
                found.setdefault(shard, []).append(field)
        return dict(sorted(found.items()))

    def make(self, live: Callable[[], Teacher], device: str, services: StageServices) -> None:
        """Make what is missing; in a worker (`services.claims`), the shards that no other worker has taken. live: makes
        the teacher ready. Raises UserError for answers that cannot be kept, Stopped after a signal."""
        claimed = services.claims
        missing = {str(shard): shard for shard in self.missing}
        total = sum(len(self.division.rows_of(shard)) for shard in missing.values()) if claimed is None else None
        teacher, done = live(), 0
        with services.progress("teacher cache", total, "rows") as progress:
            progress.update(done)
            for name in missing if claimed is None else claims.share_out(claimed, missing):
                shard = missing[name]
                fields = [field for field, shards in self.fields.items() if not shards.path(shard).exists()]
                if fields:  # else a worker of a command that was killed has written them meanwhile
                    asked = _Asked(teacher, device, services.stop, progress, done)
                    done = self._fill_shard(shard, fields, asked)

    def _fill_shard(self, shard: int, fields: Sequence[Field], asked: _Asked) -> int:
        """All or nothing of one shard; returns how many rows are done with its own."""
        needs, done = live_needs(fields), asked.done
        answers: dict[Field, list[dict[str, np.ndarray]]] = {field: [] for field in fields}
        entries: dict[str, list[np.ndarray]] = {field.per: [] for field in fields}
        numbers = []
        for batch in self.rows.batches(self.division.rows_of(shard), FILL_TOKENS):
            asked.stop()
            with torch.no_grad():
                output = asked.teacher(batch.to(asked.device), needs)
            done += batch.rows
            asked.progress.update(done)
            numbers.append(batch.row_ids.numpy())
            for per, found in entries.items():
                found.append(counts(per, batch))  # type: ignore[arg-type]
            for field, parts in answers.items():
                parts.append(field.encode(output))
        for field, parts in answers.items():
            self.fields[field].write(shard, *sort_rows(parts, entries[field.per], numbers))
        return done


@dataclass(frozen=True)
class _Asked:
    """Who is asked, and what goes on meanwhile. done: rows of earlier shards."""

    teacher: Teacher
    device: str
    stop: Callable[[], None]
    progress: Progress
    done: int


def sort_rows(
    parts: Sequence[Mapping[str, np.ndarray]], counts: Sequence[np.ndarray], numbers: Sequence[np.ndarray]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Batches, which come shortest row first, in the order of their rows. parts: arrays of the entries of each batch,
    row after row.  counts: entries of each row.  numbers: of the rows. Returns the arrays, and the counts."""
    order = np.argsort(np.concatenate(numbers), kind="stable")
    sizes = np.concatenate(counts)
    items, _ = gather(bounds_of(sizes.tolist()), order)
    return {name: np.concatenate([part[name] for part in parts])[items] for name in parts[0]}, sizes[order]
