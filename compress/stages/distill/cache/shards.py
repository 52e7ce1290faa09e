"""A field on the disk: arrays of numbers by row, in shards of consecutive rows, read through memory maps.

A shard is a folder with a manifest, written whole or not at all. `offsets.bin` says where each row begins in the
others: a row has one entry, one per token, or one per masked position.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from compress.data.batches.ragged import bounds_of, gather
from compress.errors import ExitCode, UserError
from compress.storage import atomic

INDEX = "shards.json"
OPEN_MAPS = 256
"""Files that stay mapped. Their pages are the page cache's: the system takes them back when it needs memory."""


@dataclass(frozen=True)
class Division:
    """rows: of the data.  rows_per_shard: of every shard but the last."""

    rows: int
    rows_per_shard: int

    def __len__(self) -> int:
        return -(-self.rows // self.rows_per_shard)

    def rows_of(self, shard: int) -> np.ndarray:
        """The numbers of a shard's rows."""
        first = shard * self.rows_per_shard
        return np.arange(first, min(first + self.rows_per_shard, self.rows), dtype=np.int64)


class Shards:
    """The shards of one field. columns: name of an array → (type, width)."""

    def __init__(self, folder: Path, columns: Mapping[str, tuple[np.dtype, int]], division: Division) -> None:
        self.folder, self.columns, self.division = folder, columns, division
        self._maps: OrderedDict[tuple[int, str], np.ndarray] = OrderedDict()

    def path(self, shard: int) -> Path:
        return self.folder / f"shard-{shard:05d}"

    def list_missing(self) -> list[int]:
        """Shards that are not there yet."""
        return [shard for shard in range(len(self.division)) if not self.path(shard).exists()]

    def verify(self) -> None:
        """Read every byte of the shards that are there. Raises UserError (data) naming one that is damaged or cut."""
        for shard in range(len(self.division)):
            path = self.path(shard)
            problems = atomic.verify_folder(path) if path.exists() else []
            if problems:
                raise _damaged(path, problems[0])

    def write(self, shard: int, arrays: Mapping[str, np.ndarray], counts: np.ndarray) -> None:
        """Write one shard, or leave it as another process has written it meanwhile. arrays: all of its entries, row
        after row.  counts: how many entries each row has."""
        try:
            self._write(shard, arrays, counts)
        except UserError as error:
            if error.code != ExitCode.REFUSED or atomic.verify_folder(self.path(shard)):
                raise

    def _write(self, shard: int, arrays: Mapping[str, np.ndarray], counts: np.ndarray) -> None:
        offsets = bounds_of(counts.tolist())
        size = offsets.nbytes + sum(array.nbytes for array in arrays.values())
        with atomic.new_folder(self.path(shard), needed=size) as temp:
            atomic.write_bytes(temp / "offsets.bin", offsets.tobytes())
            for name, (dtype, width) in self.columns.items():
                assert arrays[name].shape == (offsets[-1], width), (name, arrays[name].shape)
                atomic.write_bytes(temp / f"{name}.bin", np.ascontiguousarray(arrays[name], dtype=dtype).tobytes())

    def write_index(self) -> None:
        """Write down the rows of each shard, and the sizes and digests of its files: INDEX, for whoever checks a copy
        of the field."""
        rows = []
        for shard in range(len(self.division)):
            numbers, files = self.division.rows_of(shard), atomic.read_manifest(self.path(shard))
            told = {name: {"bytes": file.size, "sha256": file.sha256} for name, file in sorted(files.items())}
            rows.append({"first": int(numbers[0]), "rows": len(numbers), "files": told})
        atomic.write_json(self.folder / INDEX, {"rows": self.division.rows, "shards": rows})

    def read(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """(arrays of the rows' entries, row after row in the order asked for; how many entries each has)."""
        shards = rows // self.division.rows_per_shard
        chosen = [(int(shard), np.flatnonzero(shards == shard)) for shard in np.unique(shards)]
        counts = np.zeros(len(rows), dtype=np.int64)
        sources: list[tuple[int, np.ndarray, np.ndarray]] = []
        for shard, places in chosen:
            items, bounds = gather(self._offsets(shard), rows[places] - shard * self.division.rows_per_shard)
            counts[places] = np.diff(bounds)
            sources.append((shard, places, items))
        bounds = bounds_of(counts.tolist())
        found = {name: np.empty((bounds[-1], width), dtype) for name, (dtype, width) in self.columns.items()}
        for shard, places, items in sources:
            targets, _ = gather(bounds, places)
            for name, array in found.items():
                array[targets] = self._map(shard, name, *self.columns[name])[items]
        return found, counts

    def size(self) -> int:
        """Bytes on the disk of the shards that are there."""
        there = [self.path(shard) for shard in range(len(self.division)) if self.path(shard).exists()]
        return sum(record.size for path in there for record in atomic.read_manifest(path).values())

    def _offsets(self, shard: int) -> np.ndarray:
        return self._map(shard, "offsets", np.dtype(np.int64), 1)[:, 0]

    def _map(self, shard: int, name: str, dtype: np.dtype, width: int) -> np.ndarray:
        """(entries, width) of one file."""
        key = (shard, name)
        if key not in self._maps:
            path = self.path(shard) / f"{name}.bin"
            # an empty file cannot be mapped, and has nothing to say
            flat = np.memmap(path, dtype, "r") if path.stat().st_size else np.empty(0, dtype)
            self._maps[key] = flat.reshape(-1, width)
            if len(self._maps) > OPEN_MAPS:
                self._maps.popitem(last=False)
        self._maps.move_to_end(key)
        return self._maps[key]


def _damaged(path: Path, why: str) -> UserError:
    return UserError(
        "a shard of the teacher cache is damaged",
        where=str(path),
        why=why,
        do="remove this folder to have it rebuilt, or restore it from a copy",
        code=ExitCode.DATA,
    )
