"""What the process that fills a teacher cache hands over to its workers: the token ids of the rows that are missing.

    FOLDER/handover.json        which answers are wanted (`HandOver`)
           tokens/shard-00000/  what a teacher reads of consecutive rows (`Shards`): 7 bytes a token, 8 a row

A worker reads the tokens of its shards and the teacher's folder, and nothing else: no data and no tokenizer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter

from compress.contracts import Batch
from compress.data.batches.epoch_order import micro_batches
from compress.data.batches.examples import pack
from compress.data.batches.fixed_rows import FixedRows
from compress.data.batches.ragged import bounds_of, gather
from compress.stages.distill.cache.fields import Field
from compress.stages.distill.cache.filling import FILL_TOKENS, Filling, open_fields, sort_rows
from compress.stages.distill.cache.identity import Identity
from compress.stages.distill.cache.shards import Division, Shards
from compress.stages.shared.stage import StageServices
from compress.storage import atomic, safe
from compress.storage.trees import remove_tree

NOTE = "handover.json"
AT_ONCE = 32
"""Shards of the cache whose rows lie in one shard of tokens: at most a million tokens, which are in memory while it is
written."""
_COLUMNS = {
    "ids": (np.dtype(np.int32), 1),
    "segments": (np.dtype(np.uint8), 1),
    "special": (np.dtype(np.bool_), 1),
    "masked": (np.dtype(np.bool_), 1),
}
"""A token each. masked: whether its vocabulary logits are read (`Batch.mlm_positions`)."""


@dataclass(frozen=True)
class HandOver:
    """Which answers are wanted. cache: its folder.  identity: whose, to what.  division: of the rows into shards."""

    cache: Path
    identity: Identity
    division: Division
    fields: tuple[Field, ...]

    def write(self, folder: Path, rows: FixedRows, missing: Sequence[int], services: StageServices) -> None:
        """Write what workers read. rows: all of them.  missing: shards of the cache. Replaces what an earlier command
        left there. Raises UserError when the disk is full, Stopped after a signal."""
        remove_tree(folder, folder.parent)
        held = self._hold_tokens(folder)
        wanted = sorted({shard // AT_ONCE for shard in missing})
        total, done = sum(len(held.division.rows_of(shard)) for shard in wanted), 0
        with services.progress("rows for the workers", total, "rows") as progress:
            for shard in wanted:
                services.stop()
                batches = rows.batches(held.division.rows_of(shard), FILL_TOKENS)
                numbers = [batch.row_ids.numpy() for batch in batches]
                lengths = [np.diff(batch.cu_seqlens.numpy()) for batch in batches]
                held.write(shard, *sort_rows([_read_tokens(batch) for batch in batches], lengths, numbers))
                done += len(held.division.rows_of(shard))
                progress.update(done)
        atomic.write_json(folder / NOTE, _ADAPTER.dump_python(self, mode="json"))

    @classmethod
    def read(cls, folder: Path) -> HandOver:
        """What was written there."""
        return _ADAPTER.validate_python(safe.read_json(folder / NOTE))

    def open(self, folder: Path) -> Filling:
        """The work of a worker."""
        return Filling(
            open_fields(self.cache, self.fields, self.division), self.division, HandedRows(self._hold_tokens(folder))
        )

    def _hold_tokens(self, folder: Path) -> Shards:
        wide = Division(self.division.rows, self.division.rows_per_shard * AT_ONCE)
        return Shards(folder / "tokens", _COLUMNS, wide)


_ADAPTER = TypeAdapter(HandOver)


@dataclass(frozen=True)
class HandedRows:
    """Rows that were handed over, in the batches of the source that they come from."""

    tokens: Shards

    def batches(self, rows: np.ndarray, max_tokens: int) -> Sequence[Batch]:
        """As of `FixedRows`."""
        held, lengths = self.tokens.read(rows)
        columns, offsets = {name: array[:, 0] for name, array in held.items()}, bounds_of(lengths.tolist())
        found = []
        for part in micro_batches(np.arange(len(rows)), lengths, max_tokens):
            items, bounds = gather(offsets, part)
            ids, segments, special, masked = (columns[name][items] for name in _COLUMNS)
            hidden = np.flatnonzero(masked)
            found.append(
                pack(ids, bounds, segments=segments, special=special, row_ids=rows[part], mlm_positions=hidden)
            )
        return found


def _read_tokens(batch: Batch) -> dict[str, np.ndarray]:
    """What a teacher reads of a batch, by the names of the columns: (T, 1)."""
    assert batch.special_mask is not None
    masked = np.zeros(batch.tokens, np.bool_)
    if batch.mlm_positions is not None:
        masked[batch.mlm_positions.numpy()] = True
    found = {
        "ids": batch.input_ids.numpy(), "segments": batch.segment_ids.numpy(),
        "special": batch.special_mask.numpy(), "masked": masked,
    }  # fmt: skip
    return {name: array.astype(_COLUMNS[name][0])[:, None] for name, array in found.items()}
