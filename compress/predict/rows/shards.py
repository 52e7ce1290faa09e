"""Shards of answers: each is a folder that appears whole, with the digests of its files, and is made once.

shards/000000/   answers.jsonl  rejected.jsonl (where rows were rejected)  shard.json (its rows)  manifest.json
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from compress.errors import ExitCode, UserError
from compress.predict.rows.answers import Answerer
from compress.predict.rows.inputs import BadRow, Reject, Row, TextColumns, stop_at
from compress.predict.rows.plan import Piece, Plan, Shard
from compress.predict.rows.reading import find_kind, read_rows
from compress.predict.rows.windows import divide
from compress.storage import atomic, claims, safe
from compress.storage.lines import new_lines

SHARDS, ANSWERS, REJECTED, RECORD = "shards", "answers.jsonl", "rejected.jsonl", "shard.json"


@dataclass(frozen=True)
class ShardFolder:
    """Where a shard is, or will be."""

    path: Path
    shard: Shard

    @classmethod
    def of(cls, base: Path, shard: Shard) -> ShardFolder:
        """The folder of a shard below the folder of them all."""
        return cls(base / SHARDS / shard.name, shard)

    def list_faults(self) -> list[str]:
        """Why it has to be made, or made again; empty for a whole one."""
        if not self.path.exists():
            return ["missing"]
        return atomic.verify_folder(self.path) or self._compare_record()

    def _compare_record(self) -> list[str]:
        try:
            record = self.read_record()
        except UserError as error:
            return [error.what]
        return [] if (record["first"], record["rows"]) == (self.shard.first, self.shard.rows) else ["other rows"]

    def read_record(self) -> dict[str, Any]:
        """Its rows: first, rows, answered and rejected. Raises UserError for a damaged record."""
        record = safe.read_json(self.path / RECORD)
        if not all(isinstance(record.get(name), int) for name in ("first", "rows", "answered", "rejected")):
            raise UserError("damaged", where=str(self.path / RECORD))
        return record


class ShardReader:
    """Reads the rows of one shard after the other. A file that can only be read from its begin on stays open, so that
    shards in ascending order cost one reading of it."""

    def __init__(self, plan: Plan, columns: TextColumns) -> None:
        self._plan, self._columns = plan, columns
        self._open: tuple[int, int, Iterator[Row | None]] | None = None

    def read(self, shard: Shard) -> Iterator[Row]:
        """Its rows. Raises UserError for a file that has fewer than when it was planned."""
        for piece in shard.pieces:
            count = 0
            for row in islice(self._begin(piece), piece.rows):
                assert row is not None
                count += 1
                yield row
            if count < piece.rows:
                raise UserError("the file changed while it was read", where=self._plan.files[piece.file].path)

    def _begin(self, piece: Piece) -> Iterator[Row | None]:
        file = self._plan.files[piece.file]
        if find_kind(file.place) != "csv":
            return read_rows(file.place, self._columns, piece.start, file.form)
        place, row, rows = self._open or (-1, 0, iter(()))
        if place != piece.file or row > piece.start.row:
            row, rows = 0, read_rows(file.place, self._columns, form=file.form)
        self._open = (piece.file, piece.start.row + piece.rows, rows)
        return islice(rows, piece.start.row - row, None)


@dataclass
class ShardWorker:
    """Answers those shards of a plan that no other worker has taken.

    base: the folder of them all.  keep_bad: rows that cannot be read are written down instead of raised.  told: of the
    rows that this worker has done.  check: raises what ends the work early; it is called before each window.
    """

    base: Path
    plan: Plan
    answerer: Answerer
    keep_bad: bool
    told: Callable[[int], None]
    check: Callable[[], None]

    def run(self) -> None:
        """Raises UserError for a bad row, and what the model or the disk raises; the shard is then not there. Returns
        early when another worker has met an error that ends the work of all."""
        reader = ShardReader(self.plan, self.answerer.columns)
        done = 0
        missing = {
            shard.name: folder
            for shard in self.plan.shards
            if not (folder := ShardFolder.of(self.base, shard)).path.exists()
        }
        try:
            for name in claims.share_out(self.base, missing):
                folder = missing[name]
                if not folder.path.exists():
                    self._make(folder, reader, done)
                    done += folder.shard.rows
        except _OtherFailedError:
            return

    def _make(self, folder: ShardFolder, reader: ShardReader, done: int) -> None:
        try:
            with atomic.new_folder(folder.path) as temporary:
                self._write(temporary, folder.shard, reader, done)
        except UserError as error:
            # A worker of an earlier command that was killed may end its last shard meanwhile: the same one.
            if error.code != ExitCode.REFUSED or folder.list_faults():
                raise

    def _write(self, folder: Path, shard: Shard, reader: ShardReader, done: int) -> None:
        rejected: list[str] = []
        answered = 0

        def keep(bad: BadRow) -> None:
            rejected.append(json.dumps(bad.as_json(), ensure_ascii=False))

        reject: Reject = keep if self.keep_bad else stop_at
        with new_lines(folder / ANSWERS) as answers:
            for rows in divide(reader.read(shard), first=shard.first, reject=reject):
                self.check()
                if claims.is_taken(self.base, claims.FAILED):
                    raise _OtherFailedError
                before = done + answered
                for line in self.answerer.lines(rows, lambda n, b=before: self.told(b + n), as_json=True):
                    answers.write(line)
                answered += len(rows)
        if rejected:
            atomic.write_text(folder / REJECTED, "\n".join(rejected) + "\n")
        counts = {"first": shard.first, "rows": shard.rows, "answered": answered, "rejected": len(rejected)}
        atomic.write_json(folder / RECORD, counts)


class _OtherFailedError(Exception):
    """Another worker has met an error that ends the work of all."""
