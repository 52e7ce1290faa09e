"""Lines of a pipe as they come: a line waits for others that can be answered with it, but not long."""

from __future__ import annotations

import io
import os
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import BinaryIO

from compress.data.reading.text_files import LINE_LIMIT

WAIT = 0.05
"""Seconds that a line waits for more lines at most."""
READ = 1 << 16  # bytes: what a pipe holds


def is_ready(descriptor: int, seconds: float | None) -> bool:
    """Whether there is something to read within so many seconds; None: wait until there is."""
    return bool(select.select([descriptor], [], [], seconds)[0])


def lines_as_they_come(
    stream: BinaryIO,
    at_once: int,
    *,
    wait: float = WAIT,
    limit: int | None = None,
    ready: Callable[[int, float | None], bool] = is_ready,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[bytes | None]:
    """Lines with their ends, and None where the lines since the last None must wait no longer.

    at_once: lines that are answered together: the time of a line is counted from the first of its group.
    limit: a longer line comes in pieces of more than so many bytes, as from `readline`; LINE_LIMIT when None. A stream
    without a descriptor, such as one in memory, never pauses.
    """
    most = LINE_LIMIT if limit is None else limit
    try:
        descriptor = stream.fileno()
    except (AttributeError, io.UnsupportedOperation):
        yield from iter(lambda: stream.readline(most + 1), b"")
        return
    rest = bytearray()
    handed, since = 0, 0.0  # lines since the last pause or full group, and when the first of them came
    while True:
        if handed and not ready(descriptor, max(0.0, since + wait - clock())):
            yield None
            handed = 0
        data = os.read(descriptor, READ)  # waits where nothing is there
        if not data:
            break
        first, newline, more = data.partition(b"\n")
        rest += first
        if not newline:
            if len(rest) > most:
                yield bytes(rest)
                rest.clear()
            continue
        rest += newline
        lines = deque([rest, *(line + newline for line in more.split(newline))])
        rest = bytearray(lines.pop()[:-1])
        while lines:
            if not handed:
                since = clock()
            handed = (handed + 1) % at_once
            yield bytes(lines.popleft())  # a line may have 64 MB: it is not kept here
    if rest:
        yield bytes(rest)
