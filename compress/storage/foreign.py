"""Opening, recognising and parsing files that somebody else wrote: bounded, and every refusal one clear line."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path
from typing import Any

from compress.errors import ExitCode, UserError, nearest, printable
from compress.storage.disk import human_bytes

HEAD = 512
"""Bytes of a file's beginning that `kind_of` looks at."""

_LFS = "a git-lfs pointer"
_PICKLE = "a pickle"
_ZIP = "a zip archive, as PyTorch writes for .bin and .pt"
_SIGNATURES = (
    (rb"version https://git-lfs\.github\.com/", _LFS),
    (rb"\s*<(?i:!doctype\s+html|html|head|\?xml)", "an HTML page"),
    (rb"PK(\x03\x04|\x05\x06|\x07\x08)", _ZIP),
    (rb"\x80[\x01-\x05]|\(dp?\d|\(l?p\d|c[\w.]+\n[\w.]+\n", _PICKLE),
    (rb"\x1f\x8b", "a gzip archive"),
    (rb"\x28\xb5\x2f\xfd", "a zstd archive"),
    (rb"\xfd7zXZ\0", "an xz archive"),
    (rb".{257}ustar", "a tar archive"),
    (rb"\x89HDF\r\n", "an HDF5 file"),
    (rb"\x93NUMPY", "a NumPy array"),
    (rb"GGUF", "a GGUF model"),
    (rb"PAR1", "a parquet file"),
    (rb"ARROW1", "an arrow file"),
    (rb"\xff\xfe|\xfe\xff", "UTF-16 text"),
    (rb"\{\s*\"", "JSON text"),
)
_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]]|-?Infinity|NaN|-?\d[\d.eE+-]*', re.DOTALL)
# an escaped backslash, a proper pair, or (group 1) half of one
_SURROGATE = re.compile(
    r"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
_COLON = re.compile(r"\s*:")


@contextlib.contextmanager
def open_plain_file(path: str | os.PathLike[str]) -> Iterator[tuple[FileIO, int]]:
    """(unbuffered file, size in bytes) of a plain file that is there and not empty; a UserError for anything else."""
    where = os.fspath(path)
    try:
        # O_NONBLOCK: opening a pipe must not wait for its other end.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unopened(where, error) from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_size == 0:
        os.close(descriptor)
        if status.st_size == 0 and stat.S_ISREG(status.st_mode):
            raise UserError("the file is empty", where=where, do="copy or download it again")
        what = "is a folder, not a file" if stat.S_ISDIR(status.st_mode) else "is not a regular file"
        raise UserError(what, where=where)
    with FileIO(descriptor, "rb") as file:
        try:
            yield file, status.st_size
        except OSError as error:
            raise UserError("cannot be read", where=where, why=error.strerror, code=ExitCode.RESOURCES) from error


def refuse_special_file(path: str | os.PathLike[str], where: str | None = None) -> None:
    """Raise UserError for a pipe, a device or a socket: they have no size, and may never end. Links are followed.

    Nothing is said of what is missing, or is a folder: opening it says more. where: the path as it is shown.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        kinds = {stat.S_IFIFO: "a pipe", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device", stat.S_IFSOCK: "a socket"}
        why, do = kinds.get(stat.S_IFMT(mode)), "copy its content to a file first"
        raise UserError("is not a regular file", where=where or os.fspath(path), why=why, do=do)


def read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    """The content of a file of at most `limit` bytes."""
    with open_plain_file(path) as (file, size):
        if size > limit:
            why = f"{human_bytes(size)}, at most {human_bytes(limit)}"
            raise UserError("the file is too large", where=os.fspath(path), why=why)
        return file.readall()[:limit]


def decode(data: bytes, where: str) -> str:
    """UTF-8 text, a byte order mark allowed. UserError with line, column and byte offset of what is not UTF-8."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise UserError("the text is UTF-16", where=where, do="save it as UTF-8")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = data[: error.start].decode("utf-8-sig", errors="replace")
        why = f"byte 0x{data[error.start]:02x} at offset {error.start}"
        raise UserError("not valid UTF-8", where=position(where, good, len(good)), why=why) from None


def kind_of(head: bytes) -> str | None:
    """What the beginning of a file looks like, in words ('a pickle', 'a git-lfs pointer' …), None when unknown."""
    for pattern, kind in _SIGNATURES:
        if re.match(pattern, head, re.DOTALL):
            return kind
    return None


def wrong_kind(kind: str, where: str, wanted: str) -> UserError:
    """The refusal of a file of another kind than `wanted`, with the way out where there is a safe one."""
    do = None
    if kind == _LFS:
        do = "run git lfs pull"
    elif kind == "an HTML page":
        do = "download the raw file, not the web page"
    elif kind in (_PICKLE, _ZIP):
        do = "loading a pickle can run code, so pickles are not supported: convert it to safetensors in a sandbox"
    return UserError(f"not {wanted}", where=where, why=f"it looks like {kind}", do=do)


def parse_json(data: bytes | str, where: str, *, depth: int = 64) -> Any:
    """One JSON object: at most `depth` levels, no key twice, no NaN, no infinity, no half character.

    Raises UserError at `where:line:column`.
    """
    text = data if isinstance(data, str) else decode(data, where)
    try:
        content = json.loads(text, object_pairs_hook=_unique, parse_constant=_constant, parse_float=_float)
    except json.JSONDecodeError as error:
        raise _not_json(text, where, error) from None
    except (_DuplicateError, _ConstantError) as error:
        raise _refused(text, where, error) from None
    except RecursionError:
        raise _too_deep(where, depth) from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError("not readable JSON", where=where, why=str(error).split(";")[0]) from None
    if not isinstance(content, dict):
        raise UserError("not a JSON object", where=where, why=f"found a {_name(content)}", do="expected { … }")
    _check_depth(content, where, depth)
    _check_characters(text, where)
    return content


def position(where: str, text: str, index: int) -> str:
    """`where:line:column` of text[index], both counted from 1."""
    line = text.count("\n", 0, index) + 1
    return f"{where}:{line}:{index - (text.rfind(chr(10), 0, index) + 1) + 1}"


class _DuplicateError(Exception):
    pass


class _ConstantError(Exception):
    pass


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        seen: set[str] = set()
        raise _DuplicateError(next(key for key, _ in pairs if key in seen or seen.add(key)))
    return content


def _constant(name: str) -> Any:
    raise _ConstantError(name)


def _float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise _ConstantError(digits)
    return number


def _unopened(where: str, error: OSError | ValueError) -> UserError:
    code = error.errno if isinstance(error, OSError) else None
    if code == errno.ENOENT:
        folder, name = os.path.split(os.path.abspath(where))
        with contextlib.suppress(OSError):
            if near := nearest(name, os.listdir(folder)):
                return UserError("no such file", where=where, do=f"did you mean '{near}'?")
        here = None if os.path.isabs(where) else f"looked in {Path.cwd()}"
        return UserError("no such file", where=where, why=here)
    if code in (errno.EACCES, errno.EPERM):
        return UserError("permission denied", where=where)
    if code in (errno.EMFILE, errno.ENFILE):
        return UserError("too many open files", where=where, do="raise ulimit -n", code=ExitCode.RESOURCES)
    # Of a path with a null character Python says this in words that differ between versions.
    why = getattr(error, "strerror", None) or ("the path contains a null character" if "\0" in where else str(error))
    return UserError("cannot be opened", where=where, why=why)


def _not_json(text: str, where: str, error: json.JSONDecodeError) -> UserError:
    kind = kind_of(text[:HEAD].encode(errors="replace"))
    if kind is not None and kind != "JSON text":
        return wrong_kind(kind, where, "a JSON file")
    found = printable(text[error.pos : error.pos + 20].partition("\n")[0]) or "end of line"
    if error.pos >= len(text.rstrip()):
        found = "end of file"
    return UserError("not valid JSON", where=position(where, text, error.pos), why=f"{error.msg}, found '{found}'")


def _refused(text: str, where: str, error: Exception) -> UserError:
    """Find where the duplicate key or the constant stands: the parser's hooks are not told."""
    wanted = str(error)
    scopes: list[dict[str, int]] = []
    for match in _TOKEN.finditer(text):
        token, start = match.group(), match.start()
        if isinstance(error, _ConstantError) and token == wanted:
            what = f"{printable(wanted, 30)} is not a valid number"
            return UserError(what, where=position(where, text, start))
        if token in "{[":
            scopes.append({})
        elif token in "}]":
            scopes.pop()
        elif token[0] == '"' and _COLON.match(text, match.end()):
            key = json.loads(token)
            if isinstance(error, _DuplicateError) and key in scopes[-1]:
                first = position("line", text, scopes[-1][key]).split(":")
                what = f"duplicate key '{printable(key, 80)}'"
                why = f"first on line {first[1]}, column {first[2]}"
                return UserError(what, where=position(where, text, start), why=why)
            scopes[-1][key] = start
    return UserError(f"'{printable(wanted, 80)}' is not allowed here", where=where)


def _too_deep(where: str, depth: int) -> UserError:
    return UserError("nested too deeply", where=where, why=f"at most {depth} levels")


def _check_depth(content: Any, where: str, depth: int) -> None:
    level = [content]
    for _ in range(depth):
        items = (node.values() if type(node) is dict else node for node in level)
        level = [item for some in items for item in some if type(item) in (dict, list)]
        if not level:
            return
    raise _too_deep(where, depth)


def _check_characters(text: str, where: str) -> None:
    """Half a surrogate pair is a string that nothing can print, hash or store."""
    if "\\u" not in text:
        return
    lone = next((match for match in _SURROGATE.finditer(text) if match.group(1)), None)
    if lone is not None:
        what = "a string contains a lone surrogate"
        raise UserError(what, where=position(where, text, lone.start()))


def _name(value: Any) -> str:
    return {list: "list", str: "string", bool: "boolean", type(None): "null"}.get(type(value), "number")
