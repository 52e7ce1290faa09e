"""Rows in windows: which are answered together.

Windows of a file end at fixed rows, so that a part of the file that begins at such a row is answered in the same
windows as in the whole, and with the same bytes: the rows beside a row may change the last bits of its figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from compress.predict.file_batches import WINDOW
from compress.predict.rows.inputs import BadRow, PredictionInput, Reject, Row, stop_at

AT_ONCE = 1024
"""Lines of a stream answered together, and the first rows of a file: few enough to answer soon."""
MOST_CHARACTERS = 1 << 24
"""Of the rows that are held at once."""


def divide(
    rows: Iterable[Row | None], *, stream: bool = False, first: int = 0, reject: Reject = stop_at
) -> Iterator[list[PredictionInput]]:
    """Consecutive rows that are answered together: fewer where texts are long, or where a None says that they must not
    wait for more.

    stream: AT_ONCE rows each.  first: the number of the first row, from 0 on.  reject: is given each bad row.
    """
    held: list[PredictionInput] = []
    characters, number, end = 0, first, _find_end(first, stream)
    for one in rows:
        if isinstance(one, BadRow):
            reject(one)
        elif one is not None:
            held.append(one)
            characters += len(one.text) + len(one.pair or "")
        number += one is not None
        if one is None or number >= end or characters >= MOST_CHARACTERS:
            if held:
                yield held
            held, characters, end = [], 0, _find_end(number, stream)
    if held:
        yield held


def _find_end(number: int, stream: bool) -> int:
    """The row before which the window that begins with row `number` ends: after the first AT_ONCE rows of a file, so
    that its first answers come soon, then after every WINDOW."""
    if stream:
        return number + AT_ONCE
    return AT_ONCE if number < AT_ONCE < WINDOW else (number // WINDOW + 1) * WINDOW
