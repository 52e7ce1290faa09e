"""One file of rows → a `Frame`, after looking at its bytes so that what is wrong is said plainly."""

from __future__ import annotations

from pathlib import Path

from compress.data.reading import text_files
from compress.data.reading.frame import Frame, FrameBuilder
from compress.data.reading.names import FOR_TEXT, make_missing_error
from compress.data.reading.remote import Place
from compress.errors import UserError, printable
from compress.storage.foreign import refuse_special_file

# suffix → what the file is; the only place that lists them
SUFFIXES = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".txt": "text",
}
TABLES = tuple(suffix for suffix, kind in SUFFIXES.items() if kind != "text")

# first bytes → what the file really is, and what to do about it
_DISGUISES = (
    (b"version https://git-lfs", "a git-lfs pointer, not the data", "run `git lfs pull`"),
    (b"\x1f\x8b", "gzip data", "unpack it first (`gunzip`)"),
    (b"PK\x03\x04", "a zip archive", "unpack it first (`unzip`)"),
    (b"\xfd7zXZ", "xz data", "unpack it first (`unxz`)"),
    (b"(\xb5/\xfd", "zstd data", "unpack it first (`zstd -d`)"),
    (b"\xff\xfe", "UTF-16 text", "convert it: `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16 text", "convert it: `iconv -f UTF-16 -t UTF-8`"),
)


def read_file(path: Path, notes: list[str], *, plain: bool = False) -> Frame:
    """The rows of one file, its format told by the suffix. `notes` receives what a person should hear.

    plain: a file of text is read too: every line that is not blank is a row.

    Raises UserError for whatever the file turns out to be: missing, empty, cut, in another encoding, a page, a pointer.
    """
    kind = SUFFIXES.get(path.suffix.lower())
    if kind == "text" and plain:
        return read_lines(path)
    if kind is None or kind == "text":
        raise UserError(
            f"cannot read '{path.suffix or path.name}' files as a table",
            where=str(path),
            do="known: " + ", ".join(TABLES) + (f"; {FOR_TEXT}" if kind else ""),
        )
    head = look(path)
    if kind in ("parquet", "arrow"):
        frame = _read_binary(path, kind, head)
    elif kind == "csv":
        frame = text_files.read_csv(path, notes)
    else:
        frame = text_files.read_jsonl(path) if kind == "jsonl" else text_files.read_json(path)
    if frame.rows == 0:
        columns = (
            "a header only: " + ", ".join(frame.columns) if frame.columns else "nothing but blank lines or brackets"
        )
        raise UserError("the file has no rows", where=str(path), why=columns)
    return frame


def read_lines(path: Path) -> Frame:
    """Plain text, every line that is not blank a row."""
    look(path)
    builder = FrameBuilder(str(path))
    for _, line in text_files.lines(path):
        if line and not line.isspace():
            builder.add({"text": line})
    if not builder.rows:
        raise UserError("the file has no text", where=str(path), why="blank lines only")
    return builder.finish()


def refuse_disguise(head: bytes, where: str) -> None:
    """Raise UserError for the first bytes of a file that are packed, a pointer, or text in UTF-16."""
    for magic, what, do in _DISGUISES:
        if head.startswith(magic):
            raise UserError(f"this is {what}", where=where, do=do)


def look(path: Place) -> bytes:
    """The first kilobyte of a readable, non-empty file that is what its name says. Raises UserError otherwise."""
    if isinstance(path, Path):
        refuse_special_file(path)
    try:
        with path.open("rb") as file:
            head = file.read(1024)
    except OSError as error:
        if not isinstance(path, Path):
            raise path.explain(error) from error
        if isinstance(error, FileNotFoundError):
            raise make_missing_error(path) from error
        if isinstance(error, IsADirectoryError):
            raise UserError("expected a file, found a folder", where=str(path)) from error
        raise UserError("cannot read the file", where=str(path), why=error.strerror or str(error)) from error
    if not head:
        raise UserError("the file is empty", where=str(path), do="give a file with at least one row")
    refuse_disguise(head, str(path))
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if start.startswith((b"<!doctype", b"<html")):
        raise UserError(
            "this is an HTML page, not data",
            where=str(path),
            why=f"it starts with {printable(start.decode('utf-8', 'replace'), 40)!r}",
            do="download the raw file, not the web page that displays it",
        )
    if SUFFIXES.get(path.suffix.lower()) not in ("parquet", "arrow"):
        _refuse_utf16_without_mark(path, head)
    return head


def _refuse_utf16_without_mark(path: Place, head: bytes) -> None:
    """UTF-16 without a byte order mark: in Western text every second byte is zero."""
    even, odd = head[0::2], head[1::2]
    for zeros, name in ((odd, "UTF-16LE"), (even, "UTF-16BE")):
        if len(head) >= 8 and zeros.count(0) > 0.6 * len(zeros) and head.count(0) < 0.7 * len(head):
            raise UserError(
                "this is UTF-16 text", where=str(path), do=f"convert it: `iconv -f {name} -t UTF-8`"
            ) from None


def _read_binary(path: Path, kind: str, head: bytes) -> Frame:
    """Parquet, or Arrow in either of its two layouts, memory-mapped."""
    import pyarrow as pa
    from datasets import Dataset

    from compress.data.reading import columnar

    if kind == "parquet":
        _check_parquet(path, head)
    try:
        table = columnar.read_parquet(path) if kind == "parquet" else columnar.read_arrow(path, head)
        columnar.require_utf8(table, path)
        return Frame.from_dataset(Dataset(table))
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise make_damaged_error(path, kind, error) from error


def make_damaged_error(path: Place, kind: str | None, error: Exception) -> UserError:
    """What is said of a parquet or Arrow file that its library could not read."""
    return UserError(
        f"cannot read this {kind} file, it is damaged or truncated",
        where=str(path),
        why=printable(str(error).splitlines()[0] if str(error) else type(error).__name__, 160),
        do="download or write it again",
    )


def _check_parquet(path: Path, head: bytes) -> None:
    if not head.startswith(b"PAR1"):
        raise UserError("this is not a parquet file", where=str(path), why=f"it starts with {head[:8]!r}, not b'PAR1'")
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4))
        if file.read(4) != b"PAR1":
            raise UserError(
                "the parquet file is truncated",
                where=str(path),
                why=f"{path.stat().st_size:,} bytes, without the end marker",
                do="download or write it again",
            )
