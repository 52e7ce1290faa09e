"""A file of lines that are written as they come, so that many of them are never in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TextIO

from compress.errors import ExitCode, UserError
from compress.storage.disk import make_folder, report_write_errors

PART = 1 << 20
"""Characters that are written at once: each part of a long line is copied to become bytes."""


def write_line(stream: TextIO, line: str) -> None:
    """A line and its end."""
    for start in range(0, len(line), PART):
        stream.write(line[start : start + PART])
    stream.write("\n")


class LineFile:
    """A file that is open for lines."""

    def __init__(self, path: Path, stream: TextIO) -> None:
        self.path, self._stream = path, stream

    def write(self, line: str, *, flush: bool = False) -> None:
        """Raises UserError when the disk fails. flush: the line leaves this process at once."""
        with report_write_errors(self.path):
            write_line(self._stream, line)
            if flush:
                self._stream.flush()


@contextmanager
def new_lines(path: str | os.PathLike[str]) -> Iterator[LineFile]:
    """A new UTF-8 file to write lines into; it is durable only where the caller makes it so (`atomic.new_folder`).

    Raises UserError (refused) when something is there already, and when the disk fails.
    """
    place = Path(path)
    make_folder(place.parent)
    with ExitStack() as stack:
        with report_write_errors(place):
            try:
                stream = stack.enter_context(open(place, "x", encoding="utf-8", newline="\n"))
            except FileExistsError:
                do = "name another file"
                raise UserError("exists already", where=str(place), do=do, code=ExitCode.REFUSED) from None
        yield LineFile(place, stream)
