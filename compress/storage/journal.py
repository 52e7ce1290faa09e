"""An append-only journal: JSON lines, each with its CRC, that a kill can cut short but never corrupt unnoticed.

A line is `{"crc":"xxxxxxxx","data":…}`, the CRC-32 taken over the bytes of the data as they stand. NaN and infinities
are allowed in it, since a diverged loss is worth keeping.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from compress.errors import UserError
from compress.storage.disk import explain, fsync_folder, make_folder
from compress.storage.faults import fault, point

_HEAD, _MIDDLE, _TAIL = b'{"crc":"', b'","data":', b"}\n"
_DATA = len(_HEAD) + 8 + len(_MIDDLE)

_OPENED = point("journal.after_open")
_BEFORE_WRITE = point("journal.before_write")
_WRITTEN = point("journal.after_write")
_SYNCED = point("journal.after_fsync")


@dataclass(frozen=True)
class JournalPart:
    """records: in order.  next_offset: where to read on later.  damaged: offsets of whole lines with a wrong CRC."""

    records: list[dict[str, Any]]
    next_offset: int
    damaged: list[int]


class Journal:
    """The writing end, for one process; any of its threads may append.

    Every record is handed to the system at once, so it survives a kill of this process; a background thread calls
    fsync within `sync_every` seconds of a write, so at most that much is lost to a power cut, and no caller waits.
    """

    def __init__(self, path: str | os.PathLike[str], *, sync_every: float = 5.0) -> None:
        """Open `path` for appending, made if need be; a line cut short by an earlier kill is removed."""
        self.path = Path(os.path.abspath(path))
        make_folder(self.path.parent)
        self._lock = threading.Lock()
        self._dirty = threading.Event()
        self._closing = threading.Event()
        self._failure: UserError | None = None
        try:
            self._descriptor = _open(self.path)
            self._end = _repair(self._descriptor)
        except OSError as error:
            raise explain(error, self.path) from error
        fault(_OPENED)
        self._sync_every = sync_every
        self._syncer = threading.Thread(target=self._sync_now_and_then, name="journal-sync", daemon=True)
        self._syncer.start()

    @property
    def end(self) -> int:
        """Offset after the last record: what a reader has caught up with when it got here."""
        return self._end

    def append(self, record: Mapping[str, Any]) -> None:
        """Write one record. UserError (exit 5) when the disk refuses; the journal then ends before this record."""
        line = encode_line(record)
        with self._lock:
            if self._closing.is_set():
                raise ValueError(f"{self.path} is closed")
            self._raise_failure()
            try:
                self._write(line)
            except OSError as error:
                raise explain(error, self.path, len(line)) from error
        self._dirty.set()

    def sync(self) -> None:
        """Make every record written so far survive a power cut."""
        self._dirty.clear()
        try:
            os.fsync(self._descriptor)
            fault(_SYNCED)
        except OSError as error:
            raise explain(error, self.path) from error

    def close(self) -> None:
        """Sync and close; a second call does nothing."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        self._syncer.join()
        try:
            self.sync()
        finally:
            os.close(self._descriptor)

    def __enter__(self) -> Journal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except UserError:
            if error is None:  # else the first error is the one to be shown
                raise

    def _write(self, line: bytes) -> None:
        fault(_BEFORE_WRITE)
        try:
            _write_all(self._descriptor, line)
        except OSError:
            # A torn line in the middle would spoil the next one too.
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, self._end)
            raise
        self._end += len(line)
        fault(_WRITTEN)

    def _sync_now_and_then(self) -> None:
        while not self._closing.wait(self._sync_every):
            if self._dirty.is_set():
                try:
                    self.sync()
                except UserError as error:  # told to the next caller: nobody listens here
                    self._failure = error

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure


def read(path: str | os.PathLike[str], offset: int = 0) -> tuple[list[dict[str, Any]], int]:
    """(records from `offset` on, offset to read on from later): `read_part` for who need not know of damage."""
    part = read_part(path, offset)
    return part.records, part.next_offset


def read_part(path: str | os.PathLike[str], offset: int = 0) -> JournalPart:
    """The records from `offset` on, which must be 0 or a `next_offset` of before.

    A last line without its end is left for the next time; a whole line with a wrong CRC is passed over and named.
    Where no line begins at `offset` (a power cut took the journal's unsynced end, and it grew anew), reads from 0:
    who replays must stand a record twice anyway. A journal that is not there yet is empty.
    """
    try:
        with open(path, "rb") as file:
            if offset and not _line_begins(file, offset):
                offset = 0
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return JournalPart([], 0, [])
    except OSError as error:
        raise explain(error, path) from error
    records: list[dict[str, Any]] = []
    damaged: list[int] = []
    start = 0
    while (end := data.find(b"\n", start)) >= 0:
        record = decode_line(data[start : end + 1])
        if record is None:
            damaged.append(offset + start)
        else:
            records.append(record)
        start = end + 1
    return JournalPart(records, offset + start, damaged)


def encode_line(record: Mapping[str, Any]) -> bytes:
    """The line that says `record`, its end included."""
    data = json.dumps(dict(record), separators=(",", ":")).encode()
    return b"%s%08x%s%s%s" % (_HEAD, zlib.crc32(data), _MIDDLE, data, _TAIL)


def decode_line(line: bytes) -> dict[str, Any] | None:
    """The record of a whole line, None when it is not what `encode_line` wrote."""
    data = line[_DATA : -len(_TAIL)]
    if line != b"%s%08x%s%s%s" % (_HEAD, zlib.crc32(data), _MIDDLE, data, _TAIL):
        return None
    try:
        record = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _open(path: Path) -> int:
    flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(path, flags, 0o666)
    fsync_folder(path.parent)
    return descriptor


def _repair(descriptor: int) -> int:
    """Finish or remove a last line that has no end; returns the journal's length."""
    size = os.fstat(descriptor).st_size
    start = _last_line_start(descriptor, size)
    if start == size:
        return size
    tail = os.pread(descriptor, size - start, start)
    if decode_line(tail + b"\n") is not None:
        _write_all(descriptor, b"\n")
        return size + 1
    os.ftruncate(descriptor, start)
    return start


def _last_line_start(descriptor: int, size: int) -> int:
    """Offset after the last line end in the file."""
    position = size
    while position > 0:
        begin = max(0, position - (1 << 16))
        found = os.pread(descriptor, position - begin, begin).rfind(b"\n")
        if found >= 0:
            return begin + found + 1
        position = begin
    return 0


def _line_begins(file: BinaryIO, offset: int) -> bool:
    file.seek(offset - 1)
    return file.read(1) == b"\n"


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
