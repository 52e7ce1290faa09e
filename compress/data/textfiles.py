"""JSON lines, JSON and CSV: every line is looked at once, so that an error names the line and shows its text.

JSON goes through Python's parser and not through the JSON reader of `datasets`: that one turns a column of texts that
look like dates into time stamps (and, asked for strings, back into other texts).
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from compress.data.frame import Frame, FrameBuilder
from compress.errors import UserError, printable

SHOWN = 80  # characters of a bad line that an error shows
JSON_LIMIT = 1 << 30  # a .json array is parsed whole; above 1 GiB it must come as lines
csv.field_size_limit(1 << 30)  # the module's default refuses cells above 128 kB


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number, text) of a UTF-8 file, without line ends (LF, CRLF or CR) and without a byte order mark.

    Raises UserError at the first byte that is not UTF-8, with its offset and line.
    """
    offset, number = 0, 0
    with path.open("rb") as file:
        for raw in file:
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


def _split(text: str) -> list[str]:
    """The lines in what ended with LF: one, or more in a file of old Macintosh line ends."""
    text = text.removesuffix("\n").removesuffix("\r")
    return text.split("\r") if "\r" in text else [text]


def _not_utf8(path: Path, offset: int, number: int, raw: bytes, start: int) -> UserError:
    around = raw[max(0, start - 20) : start + 20].decode("cp1252", "replace")
    return UserError(
        "this is not UTF-8 text",
        where=f"{path}:{number}",
        why=f"byte 0x{raw[start]:02x} at offset {offset:,}, near {show(around)}",
        do="if it is Windows or Latin-1 text, convert it: `iconv -f WINDOWS-1252 -t UTF-8`",
    )


def show(text: str) -> str:
    """Foreign text for an error: quoted, on one line, without control characters, cut."""
    return f"'{printable(text[: SHOWN + 1], SHOWN)}'"


# --- JSON -------------------------------------------------------------------------------------------------------


def read_jsonl(path: Path) -> Frame:
    """One JSON object a line; blank lines are skipped."""
    builder = FrameBuilder(str(path))
    for number, line in lines(path):
        if line and not line.isspace():
            builder.add(_object(f"{path}:{number}", line))
    return builder.finish()


def read_json(path: Path) -> Frame:
    """A JSON array of objects; a file with one object a line is accepted too."""
    with path.open("rb") as file:
        first = file.read(256).removeprefix(b"\xef\xbb\xbf").lstrip()[:1]
    if first != b"[":
        return read_jsonl(path)
    if path.stat().st_size > JSON_LIMIT:
        raise UserError("the JSON array is too large", where=str(path), why="limit 1 GiB", do="write it as .jsonl")
    text = [line for _, line in lines(path)]
    try:
        rows = json.loads("\n".join(text), object_pairs_hook=_Pairs, strict=False)
    except json.JSONDecodeError as error:
        shown = show(text[error.lineno - 1])
        raise UserError("bad JSON", where=f"{path}:{error.lineno}", why=f"{_reason(error)}: {shown}") from error
    except RecursionError as error:
        raise UserError("bad JSON", where=str(path), why="nested too deeply") from error
    builder = FrameBuilder(str(path))
    for index, row in enumerate(rows):
        if not isinstance(row, _Pairs):
            raise UserError(f"row {index + 1} is not an object", where=str(path), why=f"found {show(json.dumps(row))}")
        builder.add(row.checked(f"{path}: row {index + 1}"))
    return builder.finish()


class _Pairs(list):
    """The pairs of one JSON object, kept as pairs so that a key given twice is seen."""

    def checked(self, where: str) -> dict[str, Any]:
        row = {key: _plain(value) for key, value in self}
        if len(row) != len(self):
            twice = next(key for key, n in Counter(key for key, _ in self).items() if n > 1)
            raise UserError(f"key {show(twice)} stands twice in one object", where=where, do="keep one of them")
        return row


def _object(where: str, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line, object_pairs_hook=_Pairs, strict=False)  # not strict: a raw NUL or tab is text
    except json.JSONDecodeError as error:
        raise UserError("bad JSON", where=where, why=f"{_reason(error)}: {show(line)}") from error
    except RecursionError as error:
        raise UserError("bad JSON", where=where, why=f"nested too deeply: {show(line)}") from error
    if not isinstance(row, _Pairs):
        raise UserError("not a JSON object", where=where, why=f"found {show(line)}", do="give one object a line")
    return row.checked(where)


def _reason(error: json.JSONDecodeError) -> str:
    return f"{error.msg} at column {error.colno}"


def _plain(value: Any) -> Any:
    """Nested objects as dictionaries."""
    if isinstance(value, _Pairs):
        return {key: _plain(item) for key, item in value}
    return [_plain(item) for item in value] if isinstance(value, list) else value


# --- CSV --------------------------------------------------------------------------------------------------------


def read_csv(path: Path, notes: list[str]) -> Frame:
    """Comma, semicolon or tab separated, with a header; every cell is text ("NA" and "007" stay what they are)."""
    from datasets import DatasetDict, Features, Value, load_dataset

    from compress.data.hub import quiet

    separator, quoted = _dialect(path)
    header, rows, digest = _scan(path, separator, quoted)
    if not rows:
        return Frame({name: [] for name in header}, 0)
    if not quoted:
        notes.append(f"{path.name}: quotes are read as text (they do not pair up as quotes around cells)")
    if separator == ";":
        notes.append(f"{path.name}: read with ';' between cells")
    try:
        with quiet():
            made = load_dataset(
                "csv",
                name=digest[:32],  # the cache of `datasets` looks at size and time of a file; ours at what is in it
                data_files={"train": str(path)},
                sep=separator,
                quoting=csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE,
                keep_default_na=False,
                encoding="utf-8",
                features=Features({name: Value("string") for name in header}),
            )
    except Exception as error:  # the library raises many kinds; what can be wrong with the file was looked for above
        cause = str(error.__cause__ or error).splitlines()
        raise UserError(
            "cannot read this CSV file", where=str(path), why=printable(cause[0], 160) if cause else None
        ) from error
    assert isinstance(made, DatasetDict)
    if len(made["train"]) != rows:
        raise UserError(
            "the rows of this CSV file cannot be told apart",
            where=str(path),
            why=f"{rows:,} by its quotes, {len(made['train']):,} by its lines",
            do="write it as .jsonl",
        )
    return Frame.from_dataset(made["train"])


def _dialect(path: Path) -> tuple[str, bool]:
    """(separator, whether quotes enclose cells)."""
    _, header = next(lines(path))
    if path.suffix.lower() == ".tsv":
        return "\t", _pairs_up(path)
    return max(",;\t", key=header.count), True  # the first of them when none occurs


def _pairs_up(path: Path) -> bool:
    """Whether a TSV file makes sense with quotes around cells: many are written without any quoting."""
    try:
        _scan(path, "\t", True)
    except UserError:
        return False
    return True


def _scan(path: Path, separator: str, quoted: bool) -> tuple[list[str], int, str]:
    """(column names, rows, sha256 of the text). Raises UserError for a row that does not fit the header."""
    digest = hashlib.sha256(f"{separator}{quoted}".encode())
    position = [0]

    def feed() -> Iterator[str]:
        for number, line in lines(path):
            position[0] = number
            digest.update(line.encode())
            digest.update(b"\n")
            yield line + "\n"

    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    reader = csv.reader(feed(), delimiter=separator, quoting=quoting, strict=True)
    header, rows, start, shown = [], 0, 1, ""
    try:
        for cells in reader:
            start, shown = position[0] + 1, separator.join(cells)
            if not cells:
                continue  # a blank line
            if not header:
                header = _header(path, cells)
                continue
            if len(cells) != len(header):
                raise UserError(
                    f"{len(cells)} cells where the header has {len(header)}",
                    where=f"{path}:{position[0]}",
                    why=show(shown),
                    do="put quotes around cells that hold the separator",
                )
            rows += 1
    except csv.Error as error:
        what = "a quote is opened and never closed" if "unexpected end" in str(error) else f"bad CSV ({error})"
        raise UserError(what, where=f"{path}:{start}", why=f"the row starts {show(_line(path, start))}") from error
    return header, rows, digest.hexdigest()


def _line(path: Path, wanted: int) -> str:
    return next((text for number, text in lines(path) if number == wanted), "")


def _header(path: Path, cells: list[str]) -> list[str]:
    twice = [name for name, n in Counter(cells).items() if n > 1]
    if twice:
        raise UserError(f"column {show(twice[0])} stands twice in the header", where=f"{path}:1", do="rename one")
    return cells
