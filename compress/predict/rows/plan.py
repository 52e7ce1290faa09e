"""Which rows each shard answers. It depends on the files and the rows of a shard alone, not on who answers them.

Rows are numbered through all files in their order. A shard is a range of that numbering: a part of one file, or the end
of one and the begin of the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from compress.data.reading import text_files
from compress.data.reading.remote import Place, parse_place
from compress.data.reading.text_files import CsvForm
from compress.errors import UserError
from compress.predict.rows.inputs import TextColumns
from compress.predict.rows.reading import (
    LineCounter,
    Start,
    find_kind,
    has_objects,
    make_unreadable_error,
    read_raw_lines,
)

SHARD_ROWS = 65_536
"""A multiple of the rows that are answered together (`windows`)."""


@dataclass(frozen=True)
class SourceFile:
    """A file as it was when it was planned. size: bytes.  modified: time of its last change, in ns.  sha256: of its
    bytes.  form: of a CSV file."""

    path: str
    rows: int
    size: int
    modified: int
    sha256: str
    form: CsvForm | None = None

    @property
    def place(self) -> Place:
        return parse_place(self.path)

    def is_unchanged(self) -> bool:
        """Whether the file has the size and time that it had, or else its bytes."""
        try:
            now = self.place.stat()
            same = (now.st_size, now.st_mtime_ns) == (self.size, self.modified)
            return same or (now.st_size == self.size and hash_file(self.place) == self.sha256)
        except OSError:
            return False


@dataclass(frozen=True)
class Piece:
    """Rows of one file. file: its place among the plan's files."""

    file: int
    start: Start
    rows: int


@dataclass(frozen=True)
class Shard:
    """number: from 0 on.  first: number of its first row, from 0 on."""

    number: int
    first: int
    pieces: Sequence[Piece]

    @property
    def name(self) -> str:
        """That of its folder, which sorts like its number."""
        return f"{self.number:06d}"

    @property
    def rows(self) -> int:
        return sum(piece.rows for piece in self.pieces)


@dataclass(frozen=True)
class Plan:
    """All rows of some files, in shards of `shard_rows` rows; the last may have fewer."""

    files: Sequence[SourceFile]
    shards: Sequence[Shard]
    shard_rows: int

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def as_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Plan:
        """Raises KeyError, TypeError or ValueError for what is no plan."""
        files = [
            SourceFile(**{**one, "form": CsvForm(**one["form"]) if one["form"] else None}) for one in content["files"]
        ]
        shards = []
        for one in content["shards"]:
            pieces = [Piece(p["file"], Start(**p["start"]), p["rows"]) for p in one["pieces"]]
            shards.append(Shard(one["number"], one["first"], pieces))
        return cls(files, shards, content["shard_rows"])


def plan_shards(
    files: Sequence[Place],
    columns: TextColumns,
    shard_rows: int,
    *,
    lenient: bool = False,
    told: Callable[[int], None] = lambda _: None,
) -> Plan:
    """Count the rows of all files and divide them. Each file is read once, CSV also for its digest; of parquet, only
    the digest is.

    lenient: bad rows of CSV files are counted, not an error.  told: of the rows that are counted. Raises UserError for
    a file that cannot be read, and where there is no row.
    """
    found: list[SourceFile] = []
    pieces: list[tuple[int, Piece]] = []
    total = 0
    for place, path in enumerate(files):
        file, starts = _index(path, columns, total, shard_rows, lenient, told)
        ends = [*(start.row for start in starts), file.rows]
        for start, (row, end) in zip(starts, pairwise(ends), strict=True):
            pieces.append((total + row, Piece(place, start, end - row)))
        found.append(file)
        total += file.rows
    if not total:
        raise UserError("there are no rows", where=str(files[0]) if len(files) == 1 else f"{len(files)} files")
    by_shard: dict[int, list[tuple[int, Piece]]] = {}
    for first, piece in pieces:
        by_shard.setdefault(first // shard_rows, []).append((first, piece))
    shards = [Shard(number, held[0][0], [p for _, p in held]) for number, held in sorted(by_shard.items())]
    return Plan(found, shards, shard_rows)


def hash_file(path: Place) -> str:
    """sha256 of the bytes of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _index(
    path: Place, columns: TextColumns, before: int, shard_rows: int, lenient: bool, told: Callable[[int], None]
) -> tuple[SourceFile, list[Start]]:
    """A file, and where the part of each shard begins in it. before: rows of the files before it."""
    try:
        now = path.stat()
        form, rows, starts, digest = None, 0, None, None
        kind = find_kind(path)
        if kind == "parquet":
            from compress.predict.rows.parquet import count_rows

            rows = count_rows(path)
        elif kind == "csv":
            if now.st_size:
                form, rows = text_files.check_csv(path, [], lenient=lenient)
        else:
            rows, starts, digest = _index_lines(path, has_objects(path, columns), before, shard_rows, told)
        if starts is None:
            starts = [Start(row) for row in _list_begins(before, rows, shard_rows)]
        sha256 = digest or hash_file(path)
    except OSError as error:
        raise make_unreadable_error(path, error) from error
    return SourceFile(str(path), rows, now.st_size, now.st_mtime_ns, sha256, form), starts


def _index_lines(
    path: Place, objects: bool, before: int, shard_rows: int, told: Callable[[int], None]
) -> tuple[int, list[Start], str]:
    """(rows, where the parts of shards begin, sha256 of the bytes) of a file of lines."""
    offset, starts, digest = 0, [], hashlib.sha256()
    counter = LineCounter(objects=objects)
    for number, line in enumerate(read_raw_lines(path), 1):
        assert line is not None
        text_files.require_short_line(line, f"{path}:{number}", "text")
        digest.update(line)
        row = counter.seen
        counter.add(line)
        if counter.seen > row and (not row or (before + row) % shard_rows == 0):
            starts.append(Start(row, offset, number))
            told(before + row)
        offset += len(line)
    return counter.rows, [one for one in starts if one.row < counter.rows], digest.hexdigest()


def _list_begins(before: int, rows: int, shard_rows: int) -> Iterator[int]:
    """The rows of a file with which the part of a shard begins."""
    if rows:
        yield 0
        yield from range(shard_rows - before % shard_rows, rows, shard_rows)
