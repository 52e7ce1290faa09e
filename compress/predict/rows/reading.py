"""Rows of one file or of all files of a folder, from any place on: a row that cannot be read is one of them.

A file of lines is read from a byte on. Of CSV, where a cell may hold line ends, the rows before the first are read and
dropped; of parquet, whole groups of rows are passed over.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import PurePath, PurePosixPath

from compress.data.reading import text_files
from compress.data.reading.files import SUFFIXES, look, refuse_disguise
from compress.data.reading.pipe import lines_as_they_come
from compress.data.reading.places import DESCRIPTIONS
from compress.data.reading.remote import Place, RemotePath
from compress.data.reading.text_files import CsvForm
from compress.data.text.texts import is_empty
from compress.errors import UserError, printable
from compress.predict.rows.inputs import BadRow, PredictionInput, Row, TextColumns, build_row
from compress.predict.rows.windows import AT_ONCE
from compress.storage.sent import find_name

READABLE = ("jsonl", "csv", "parquet", "text")
"""Kinds of files."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class Start:
    """Where reading begins. row: of the file, from 0 on.  offset: of its line, in bytes, and line: its number, from 1
    on; of files of lines only."""

    row: int = 0
    offset: int = 0
    line: int = 1


BEGIN = Start()


def find_kind(file: Place) -> str:
    """What a file holds, by its suffix: one of READABLE; a text a line where that says nothing."""
    kind = SUFFIXES.get(file.suffix.lower(), "text")
    return kind if kind in READABLE else "text"


def list_files(place: Place) -> list[Place]:
    """The file itself, or all files of rows below a folder, by name. Raises UserError where there is none, or one that
    rows cannot be read from."""
    if not place.is_dir():
        return [place]
    kinds = {one: SUFFIXES.get(one.suffix.lower()) for one in _list_below(place) if one.name not in DESCRIPTIONS}
    known = [suffix for suffix, kind in SUFFIXES.items() if kind in READABLE]
    unknown = next((one for one, kind in kinds.items() if kind not in (None, *READABLE)), None)
    if unknown is not None:
        do = f"write it as one of {', '.join(known)}, or move it to another folder"
        raise UserError(f"rows of '{unknown.suffix}' files cannot be predicted", where=str(unknown), do=do)
    if not any(kinds.values()):
        raise UserError("the folder has no files of rows", where=str(place), do=f"known: {', '.join(known)}")
    return [one for one, kind in kinds.items() if kind is not None]


def _list_below(place: Place) -> list[Place]:
    """All files below a folder but for hidden ones, by name."""
    if isinstance(place, RemotePath):
        inside: dict[Place, PurePath] = {
            one: PurePosixPath(one.key).relative_to(place.key) for one in place.list_below()
        }
    else:
        inside = {one: one.relative_to(place) for one in place.rglob("*") if one.is_file()}
    shown = [one for one, path in inside.items() if not any(part.startswith(".") for part in path.parts)]
    return sorted(shown, key=lambda one: inside[one].parts)


def read_rows(
    file: Place, columns: TextColumns, start: Start = BEGIN, form: CsvForm | None = None, *, lenient: bool = False
) -> Iterator[Row | None]:
    """The rows from a place on. None: what came so far must not wait for more. form: of a CSV file; None: it is looked
    for, and the file is checked before its first row.  lenient: as of `check_csv`.

    Raises UserError for a file that cannot be read, or of which it is not known where the next row begins.
    """
    kind = find_kind(file)
    if kind == "parquet":
        from compress.predict.rows.parquet import read_parquet

        return read_parquet(file, columns, start.row)
    if kind == "csv":
        return islice(_read_csv(file, columns, form, lenient), start.row, None)
    if has_objects(file, columns):
        build: Callable[[str, str], PredictionInput] = lambda line, where: _parse(line, where, columns)  # noqa: E731
        return _read_lines(file, start, build, objects=True)
    return _read_lines(file, start, _build_text, objects=False)


def has_objects(file: Place, columns: TextColumns) -> bool:
    """Whether the lines of a file of lines are JSON objects."""
    return columns.named or find_kind(file) == "jsonl"


def holds_texts(file: Place, columns: TextColumns) -> bool:
    """Whether each line of a file is a text as it is."""
    return find_kind(file) == "text" and not has_objects(file, columns)


class LineCounter:
    """Counts the rows of a file of lines, which is given to `add` line by line. A blank line is no row between objects,
    nor at the end of a file of texts; before another text, it is one.

    objects: whether the lines are objects.  rows: so far, up to the last line that is not blank.  seen: with the blank
    ones since then, which are rows if another text follows.
    """

    def __init__(self, *, objects: bool) -> None:
        self._objects = objects
        self.rows = self.seen = 0

    def add(self, line: bytes) -> int:
        """How many rows are known by this line: with a text also the blank ones before it."""
        if not line.strip():
            self.seen += not self._objects
            return 0
        self.seen += 1
        known, self.rows = self.seen - self.rows, self.seen
        return known


def read_raw_lines(file: Place, offset: int = 0) -> Iterator[bytes | None]:
    """Lines with their ends; None between those of standard input that must not wait for others."""
    if str(file) == "-":
        yield from lines_as_they_come(sys.stdin.buffer, AT_ONCE)
        return
    try:
        with file.open("rb") as stream:
            stream.seek(offset)
            if not offset:
                refuse_disguise(stream.peek(), str(file))
            yield from iter(lambda: stream.readline(text_files.LINE_LIMIT + 1), b"")
    except OSError as error:
        raise make_unreadable_error(file, error) from error


def make_unreadable_error(file: Place, error: OSError) -> UserError:
    """What is said of a file that the disk, or the store, does not give."""
    if isinstance(file, RemotePath):
        return file.explain(error)
    return UserError("cannot read the file", where=str(file), why=error.strerror or str(error))


def _read_lines(
    file: Place, start: Start, build: Callable[[str, str], PredictionInput], *, objects: bool
) -> Iterator[Row | None]:
    """What is built of each line without its end, and of where it stands. A line may have 64 MB: it is not kept beside
    its text. objects: as of `LineCounter`."""
    number, counter = start.line - 1, LineCounter(objects=objects)
    for line in read_raw_lines(file, start.offset):
        if line is None:
            yield None
            continue
        number += 1
        known = counter.add(line)
        if not known:
            continue
        for before in range(number - known + 1, number):
            yield BadRow(find_name(str(file)), "line", before, _make_empty_error(f"{file}:{before}"))
        where = f"{file}:{number}"
        text_files.require_short_line(line, where, "text")
        try:
            text = _decode(line.removeprefix(_BYTE_ORDER_MARK) if number == 1 else line, where)
            del line
            row: Row = build(text, where)
        except UserError as error:
            row = BadRow(find_name(str(file)), "line", number, error)
        else:
            del text
        yield row


def _decode(line: bytes, where: str) -> str:
    try:
        return line.rstrip(b"\r\n").decode()
    except UnicodeDecodeError as error:
        why = f"byte {error.start} of the line"
        raise UserError("not UTF-8", where=where, why=why, do="save the file as UTF-8") from error


def _build_text(line: str, where: str) -> PredictionInput:
    if is_empty(line):  # of white space that bytes do not know
        raise _make_empty_error(where)
    return PredictionInput(line)


def _make_empty_error(where: str) -> UserError:
    return UserError("the line is empty", where=where, do="write a text on it, or remove it")


def _parse(line: str, where: str, columns: TextColumns) -> PredictionInput:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        do = f"write one object with {columns.needed} on each line"
        do += "" if columns.flag is None else f", or remove {columns.flag}"
        raise UserError("not JSON", where=where, why=printable(line, 60), do=do) from error
    if not isinstance(row, dict):
        raise UserError("not a JSON object", where=where, why=printable(line, 60))
    return columns.build(row, where)


def _read_csv(file: Place, columns: TextColumns, form: CsvForm | None, lenient: bool) -> Iterator[Row]:
    try:
        if not file.stat().st_size:
            return
    except OSError as error:
        raise make_unreadable_error(file, error) from error
    look(file)
    form = form or text_files.check_csv(file, [], lenient=lenient)[0]
    for number, row in text_files.csv_rows(file, form):
        yield build_row(file, "line", number, row, columns)
