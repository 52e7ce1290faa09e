"""Large arrays in files without names, for as long as this process uses them: what is read row by row need not stay in
memory.

Such an array is a mapped file. What was read of it counts as memory of the process until `release` gives it back; it
stays in the system's cache of files, and is read again from there. A process that dies leaves nothing behind.
"""

from __future__ import annotations

import math
import mmap
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from compress.storage.cache import cache_folder
from compress.storage.disk import make_folder, report_write_errors

LARGE = 1 << 23
"""Bytes of an array that stays in memory."""
PIECE = 1 << 18
"""Numbers handled at once."""
FAULT = 1 << 16
"""Bytes that become resident when any byte of them is read."""
TAKEN = 256
"""Rows from anywhere in an array that are read at once: 16 MB."""
HELD = 1 << 24
"""Bytes that may have been read of all mapped files before they are released."""
_maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
_read = 0


class SpillFile:
    """Bytes appended to a file of the cache folder that has no name. Raises UserError when the disk is full."""

    def __init__(self) -> None:
        self._folder = make_folder(cache_folder() / "spill")
        with report_write_errors(self._folder):
            self._file = tempfile.TemporaryFile(dir=self._folder)  # noqa: SIM115 - it lives as long as its map
        self.size = 0

    def append(self, data: Any) -> int:
        """Where the bytes begin in the file."""
        view = memoryview(data)
        view = view.cast("B") if view.nbytes else memoryview(b"")
        with report_write_errors(self._folder, len(view)):
            self._file.write(view)
        start, self.size = self.size, self.size + len(view)
        return start

    def align(self) -> None:
        """Let the next bytes begin at a multiple of 64."""
        self.append(bytes(-self.size % 64))

    def __del__(self) -> None:
        self._file.close()  # of a table that turned out to be wrong half way

    def map(self) -> mmap.mmap:
        """All that was appended, to be read."""
        with report_write_errors(self._folder):
            self._file.flush()
        mapped = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_READ)
        _maps.add(mapped)
        self._file.close()
        return mapped


class Spool:
    """An array made piece by piece, by its first axis: in memory while it is small, in a file from then on."""

    def __init__(self, dtype: Any, shape: tuple[int, ...] = ()) -> None:
        self._dtype, self._shape = np.dtype(dtype), shape
        self._held: list[np.ndarray] = []
        self._bytes = self._rows = 0
        self._file: SpillFile | None = None

    def append(self, values: np.ndarray) -> None:
        """The next rows."""
        piece = np.ascontiguousarray(values, dtype=self._dtype)
        self._rows += len(piece)
        if self._file is None:
            self._held.append(piece)
            self._bytes += piece.nbytes
            if self._bytes <= LARGE:
                return
            self._file = SpillFile()
            for held in self._held:
                self._file.append(held)
            self._held = []
        else:
            self._file.append(piece)

    def finish(self) -> np.ndarray:
        """The whole array; one that lies in a file cannot be written to."""
        if self._file is None:
            return np.concatenate(self._held) if self._held else np.zeros((0, *self._shape), self._dtype)
        mapped = self._file.map()
        count = self._rows * math.prod(self._shape)
        return np.frombuffer(mapped, self._dtype, count).reshape(self._rows, *self._shape)


def spill(array: np.ndarray) -> np.ndarray:
    """The same numbers, in a file if they are many."""
    if array.nbytes <= LARGE:
        return array
    spool = Spool(array.dtype, array.shape[1:])
    for piece in pieces(array):
        spool.append(piece)
    return spool.finish()


def concatenate(arrays: Sequence[np.ndarray]) -> np.ndarray:
    """The arrays end to end along their first axis, in a file if they are large."""
    spool = Spool(np.result_type(*arrays), arrays[0].shape[1:])
    for array in arrays:
        for piece in pieces(array):
            spool.append(piece)
    return spool.finish()


def take(array: np.ndarray, indices: np.ndarray) -> np.ndarray:
    """`array[indices]`, in a file if it is large; of a large array a few rows are read at a time."""
    if array.nbytes <= LARGE or not len(indices):
        return array[indices]
    spool = Spool(array.dtype, array.shape[1:])
    row = array.nbytes // len(array)
    for start in range(0, len(indices), TAKEN):
        part = indices[start : start + TAKEN]
        note_read(min(FAULT * len(part), row * int(part.max() - part.min() + 1)))
        spool.append(array[part])
    return spool.finish()


def pieces(array: np.ndarray) -> Iterator[np.ndarray]:
    """Consecutive rows of an array, so few that a copy of them is small."""
    step = max(1, PIECE // max(1, math.prod(array.shape[1:])))
    for start in range(0, max(1, len(array)), step):
        piece = array[start : start + step]
        note_read(piece.nbytes)
        yield piece


def note_read(size: int) -> None:
    """So many bytes of mapped files were read, or will be at once: now and then, what was read is released."""
    global _read
    _read += size
    if _read > HELD:
        _read = 0
        release()


def release() -> None:
    """Give back the memory of what was read of mapped files; the arrays over them stay good."""
    for mapped in list(_maps):
        mapped.madvise(mmap.MADV_DONTNEED)
