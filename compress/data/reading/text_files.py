"""JSON lines, JSON and CSV: one look at every line, so that what is checked is what is read, and errors name the line.

Python's parsers and not the readers of `datasets`: its JSON turns texts that look like dates into time stamps (asked
for strings, into other texts), its CSV turns "NA" into nothing, and both say of a bad file only that it could not
be read.
"""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from collections.abc import Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.data.reading import squad
from compress.data.reading.frame import Frame, FrameBuilder
from compress.data.reading.remote import Place
from compress.errors import UserError, printable

SHOWN = 80  # characters of a bad line that an error shows
LINE_LIMIT = 1 << 26  # bytes; a longer line is no row: a file without line ends, or one of zeros
KEY_LIMIT = 10_000  # keys of an object: each is a column, or a field of one
JSON_LIMIT = 1 << 30  # a .json array is parsed whole; above 1 GiB it must come as lines
csv.field_size_limit(1 << 30)  # the module's default refuses cells above 128 kB


def lines(path: Place) -> Generator[tuple[int, str]]:
    """(line number, text) of a UTF-8 file, without line ends (LF, CRLF or CR) and without a byte order mark.

    Raises UserError at the first byte that is not UTF-8, with its offset and line, and at a line of more than 64 MiB.
    """
    offset, number = 0, 0
    with path.open("rb") as file:
        while raw := file.readline(LINE_LIMIT + 1):
            require_short_line(raw, f"{path}:{number + 1}", "row")
            try:
                text = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, offset + error.start, number + 1, raw, error.start) from error
            offset += len(raw)
            if number == 0:
                text = text.removeprefix("\ufeff")
            for part in _split(text):
                number += 1
                yield number, part


def require_short_line(line: bytes, where: str, what: str) -> None:
    """Raise UserError for a line of more than LINE_LIMIT bytes. what: a line should hold, in one word."""
    if len(line) > LINE_LIMIT:
        why = f"limit {LINE_LIMIT >> 20} MiB"
        raise UserError("the line is too long", where=where, why=why, do=f"write a {what} per line")


def _split(text: str) -> list[str]:
    """The lines in what ended with LF: one, or more in a file of old Macintosh line ends."""
    text = text.removesuffix("\n").removesuffix("\r")
    return text.split("\r") if "\r" in text else [text]


def _not_utf8(path: Place, offset: int, number: int, raw: bytes, start: int) -> UserError:
    if _is_gb2312(raw):
        name, encoding = "Chinese text in GBK or GB18030", "GB18030"
        before = len(raw[:start].decode("gb2312", "ignore"))
        around = raw.decode("gb2312")[max(0, before - 10) : before + 10]
    else:
        name, encoding = "Windows or Latin-1 text", "WINDOWS-1252"
        around = raw[max(0, start - 20) : start + 20].decode("cp1252", "replace")
    return UserError(
        "this is not UTF-8 text",
        where=f"{path}:{number}",
        why=f"byte 0x{raw[start]:02x} at offset {offset:,}, near {show(around)}",
        do=f"if it is {name}, convert it: `iconv -f {encoding} -t UTF-8`",
    )


def _is_gb2312(line: bytes) -> bool:
    """Whether it decodes as Chinese text. Accents of Western European text stand alone, and do not."""
    try:
        line.decode("gb2312")
    except UnicodeDecodeError:
        return False
    return re.search(rb"[\xa1-\xf7]{4}", line) is not None


def show(text: str) -> str:
    """Foreign text for an error: quoted, on one line, without control characters, cut."""
    return f"'{printable(text[: SHOWN + 1], SHOWN)}'"


# --- JSON -------------------------------------------------------------------------------------------------------


def read_jsonl(path: Path) -> Frame:
    """One JSON object a line; blank lines are skipped."""
    builder = FrameBuilder(str(path))
    for _, row in jsonl_rows(path):
        builder.add(row)
    return builder.finish()


def jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """(line number, object) of each line that is not blank."""
    for number, line in lines(path):
        if line and not line.isspace():
            yield number, _object(f"{path}:{number}", line)


def read_json(path: Path) -> Frame:
    """A JSON array of objects; a file with one object a line is accepted too, and one of SQuAD's own."""
    with path.open("rb") as file:
        first = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first != b"[":
        questions = _questions(path) if first == b"{" else None
        return read_jsonl(path) if questions is None else Frame.from_rows(questions)
    if path.stat().st_size > JSON_LIMIT:
        raise UserError("the JSON array is too large", where=str(path), why="limit 1 GiB", do="write it as .jsonl")
    text = [line for _, line in lines(path)]
    try:
        rows = json.loads("\n".join(text), object_pairs_hook=_Pairs, strict=False)
    except json.JSONDecodeError as error:
        shown = show(text[error.lineno - 1])
        raise UserError("bad JSON", where=f"{path}:{error.lineno}", why=f"{_reason(error)}: {shown}") from error
    except (RecursionError, ValueError) as error:
        raise UserError("bad JSON", where=str(path), why=_limit(error)) from error
    builder = FrameBuilder(str(path))
    for index, row in enumerate(rows):
        if not isinstance(row, _Pairs):
            raise UserError(f"row {index + 1} is not an object", where=str(path), why=f"found {show(json.dumps(row))}")
        builder.add(row.checked(f"{path}: row {index + 1}"))
    return builder.finish()


def _questions(path: Path) -> list[dict[str, Any]] | None:
    """The rows of a file of SQuAD; None when it is another file, whose mistakes are for others to tell."""
    with path.open("rb") as file:
        start = file.read(4096)
    # A cheap mark first: an object a line is what most files hold, and they may be large.
    if b'"data"' not in start or path.stat().st_size > JSON_LIMIT:
        return None
    try:
        return squad.rows_of(json.loads(path.read_bytes()))
    except (ValueError, RecursionError):
        return None


class _Pairs(list):
    """The pairs of one JSON object, kept as pairs so that a key given twice is seen."""

    def require_few(self, where: str) -> None:
        """Raise UserError for more than KEY_LIMIT of them."""
        if len(self) > KEY_LIMIT:
            raise UserError(f"an object has {len(self):,} keys", where=where, why=f"limit {KEY_LIMIT:,}")

    def checked(self, where: str) -> dict[str, Any]:
        self.require_few(where)
        row = {key: _plain(value, where) for key, value in self}
        if len(row) != len(self):
            twice = next(key for key, n in Counter(key for key, _ in self).items() if n > 1)
            raise UserError(f"duplicate key {show(twice)} in an object", where=where, do="keep one of them")
        return row


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_Pairs, strict=False)  # not strict: a raw NUL or tab is text
    except json.JSONDecodeError as error:
        raise UserError("bad JSON", where=where, why=f"{_reason(error)}: {show(line)}") from error
    except (RecursionError, ValueError) as error:
        raise UserError("bad JSON", where=where, why=f"{_limit(error)}: {show(line)}") from error
    if not isinstance(row, _Pairs):
        raise UserError("not a JSON object", where=where, why=f"found {show(line)}", do="write one object per line")
    return row.checked(where)


def _reason(error: json.JSONDecodeError) -> str:
    return f"{error.msg} at column {error.colno}"


def _limit(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else "a number has thousands of digits"


def _plain(value: Any, where: str) -> Any:
    """Nested objects as dictionaries."""
    if isinstance(value, _Pairs):
        value.require_few(where)
        return {key: _plain(item, where) for key, item in value}
    return [_plain(item, where) for item in value] if isinstance(value, list) else value


# --- CSV --------------------------------------------------------------------------------------------------------


def read_csv(path: Path, notes: list[str]) -> Frame:
    """Comma, semicolon or tab separated, with a header; every cell is text ("NA" and "007" stay what they are).

    A .tsv file whose quotes do not pair up around cells is read without quoting, as many are written.
    """
    if path.suffix.lower() == ".tsv":
        try:
            return _frame(path, CsvForm("\t"))
        except UserError:
            frame = _frame(path, CsvForm("\t", quoted=False))
            notes.append(_note_unquoted(path))
            return frame
    return _frame(path, CsvForm(_separator(path, notes)))


@dataclass(frozen=True)
class CsvForm:
    """How a CSV file is written. quoted: whether quotes stand around cells; else they are text."""

    separator: str
    quoted: bool = True


def check_csv(path: Place, notes: list[str], *, lenient: bool = False) -> tuple[CsvForm, int]:
    """(how the file is written, its rows); the whole file is read, so that nothing is done with the rows of a bad one.

    Raises UserError as `read_csv`. lenient: not for rows that do not fit the header, which `csv_rows` names.
    """
    if path.suffix.lower() != ".tsv":
        form = CsvForm(_separator(path, notes))
        return form, _count(path, form, lenient)
    forms = CsvForm("\t"), CsvForm("\t", quoted=False)
    *tries, (last, allowed) = [(form, bad) for bad in ((False, True) if lenient else (False,)) for form in forms]
    for form, bad in tries:
        with suppress(UserError):
            rows = _count(path, form, bad)
            break
    else:
        form, rows = last, _count(path, last, allowed)
    if not form.quoted:
        notes.append(_note_unquoted(path))
    return form, rows


def csv_rows(path: Place, form: CsvForm) -> Iterator[tuple[int, dict[str, str] | UserError]]:
    """(line on which it begins, cells by column) of each row, one after the other: a large file is never in memory.
    In place of a row that does not fit the header comes the error."""
    rows = _records(path, form)
    _, names = next(rows, (1, []))
    header = _header(path, names)
    for number, cells in rows:
        error = _find_misfit(path, number, cells, header, form)
        yield number, error or dict(zip(header, cells, strict=True))


def _count(path: Place, form: CsvForm, lenient: bool) -> int:
    """The rows. Raises UserError for a row that does not fit the header, where not `lenient`."""
    count = 0
    for count, (_, row) in enumerate(csv_rows(path, form), 1):  # noqa: B007
        if isinstance(row, UserError) and not lenient:
            raise row
    return count


def _separator(path: Place, notes: list[str]) -> str:
    with closing(lines(path)) as found:
        header = next(found)[1]
    separator = max(",;\t", key=header.count)  # the first of them when none occurs
    if separator != ",":
        notes.append(f"{path.name}: the separator is {separator!r}")
    return separator


def _note_unquoted(path: Place) -> str:
    return f"{path.name}: quotes are read as text because they are not balanced around cells"


def _frame(path: Path, form: CsvForm) -> Frame:
    builder = FrameBuilder(str(path))
    for _, row in csv_rows(path, form):
        if isinstance(row, UserError):
            raise row
        builder.add(row)
    if builder.rows:
        return builder.finish()
    return Frame({name: [] for _, header in _records(path, form) for name in header}, 0)


def _records(path: Place, form: CsvForm) -> Iterator[tuple[int, list[str]]]:
    """(line on which it begins, cells) of the header of a CSV file, then of its rows."""
    quoting = csv.QUOTE_MINIMAL if form.quoted else csv.QUOTE_NONE
    number, start = 0, 1
    with closing(lines(path)) as found:

        def feed() -> Iterator[str]:
            nonlocal number
            for at, line in found:
                number = at
                yield line + "\n"

        try:
            for cells in csv.reader(feed(), delimiter=form.separator, quoting=quoting, strict=True):
                if cells:  # else a blank line
                    yield start, cells
                start = number + 1
        except csv.Error as error:
            what = "a quote is not closed" if "unexpected end" in str(error) else f"bad CSV ({error})"
            raise UserError(what, where=f"{path}:{start}", why=f"the row starts {show(_line(path, start))}") from error


def _find_misfit(path: Place, number: int, cells: list[str], header: list[str], form: CsvForm) -> UserError | None:
    """What is wrong with a row that has more or fewer cells than the header."""
    if len(cells) == len(header):
        return None
    return UserError(
        f"the row has {len(cells)} cells, the header has {len(header)}",
        where=f"{path}:{number}",
        why=show(form.separator.join(cells)),
        do="put quotes around cells that contain the separator",
    )


def _line(path: Place, wanted: int) -> str:
    with closing(lines(path)) as found:
        return next((text for number, text in found if number == wanted), "")


def _header(path: Place, cells: list[str]) -> list[str]:
    twice = [name for name, n in Counter(cells).items() if n > 1]
    if twice:
        raise UserError(f"duplicate column {show(twice[0])} in the header", where=f"{path}:1", do="rename one")
    return cells
