"""CSV that a spreadsheet can open safely; the only code that formats CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence

_FORMULA = tuple("=+-@＝＋－＠")
"""A spreadsheet computes a text that begins with one of these, in some languages with the full-width form."""
_SPACE = ("\t", "\r", "\n")
"""Spreadsheets drop these at the beginning of a text, then look again."""


def format_csv(rows: Iterable[Sequence[object]]) -> str:
    """The rows as CSV, one line each; numbers as they are, None as an empty cell.

    A text that a spreadsheet would compute is preceded by an apostrophe, which marks it as text. Column names are texts
    too: names of metrics come from the store.
    """
    lines: list[str] = []
    # With "\r\n" as the end of a line the writer quotes a cell with either of the two, which otherwise ends the row.
    writer = csv.writer(_Lines(lines), lineterminator="\r\n")
    for row in rows:
        writer.writerow([_mark_text(cell) for cell in row])
    return "".join(line.removesuffix("\r\n") + "\n" for line in lines)


class _Lines:
    """What `csv.writer` writes to: one call a row."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines

    def write(self, line: str) -> None:
        self._lines.append(line)


def _mark_text(cell: object) -> object:
    if not isinstance(cell, str):
        return cell
    begins = cell.startswith(_SPACE) or cell.lstrip().startswith(_FORMULA)
    return f"'{cell}" if begins else cell
