"""The manifest of a folder that we wrote: sha256 and size of each file. It alone says that a folder is whole.

Loading cannot: a flipped bit in a tensor file loads without a word. The text of a manifest is a pure function of its
content, so that any change to the manifest itself shows too.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from compress.errors import UserError
from compress.storage import temporary

NAME = "manifest.json"
FORMAT = "compress-manifest"
VERSION = 1
_LIMIT = 16 << 20
_CHUNK = 1 << 20


@dataclass(frozen=True)
class FileRecord:
    """sha256: hexadecimal.  size: bytes."""

    sha256: str
    size: int


def build(folder: Path) -> dict[str, FileRecord]:
    """Hash every file below `folder`, by its path relative to it with forward slashes."""
    return {name: _hash(folder / name) for name in files_below(folder) if name != NAME}


def encode(files: Mapping[str, FileRecord]) -> bytes:
    """The one text that says `files`."""
    rows = {name: {"sha256": files[name].sha256, "size": files[name].size} for name in sorted(files)}
    return (json.dumps({"format": FORMAT, "version": VERSION, "files": rows}, indent=1) + "\n").encode()


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, FileRecord]:
    """What the manifest of `folder` lists. Raises UserError with one line when it is missing, damaged or newer."""
    path = Path(folder) / NAME
    try:
        with open(path, "rb") as file:
            data = file.read(_LIMIT + 1)
    except FileNotFoundError:
        raise UserError(
            "has no manifest.json", where=str(folder), why="it is incomplete, or was not written by compress"
        ) from None
    except OSError as error:
        raise UserError("manifest.json cannot be read", where=str(folder), why=error.strerror) from error
    if len(data) > _LIMIT:
        raise UserError("manifest.json is too large", where=str(folder), why=f"more than {_LIMIT >> 20} MB")
    try:
        files = _decode(data)
    except (ValueError, KeyError, TypeError, AttributeError, ArithmeticError, RecursionError) as error:
        why = str(error) if isinstance(error, _NewerError) else "its content has changed"
        raise UserError("manifest.json is damaged", where=str(folder), why=why) from None
    return files


def is_ours(folder: str | os.PathLike[str]) -> bool:
    """True for a real folder (no link) with a manifest that we wrote; its files may still be damaged."""
    try:
        read_manifest(folder)
    except UserError:
        return False
    return os.path.isdir(folder) and not os.path.islink(folder)


def verify_folder(folder: str | os.PathLike[str]) -> list[str]:
    """Why the folder cannot be trusted, one short line each; empty when every listed file is there and unchanged.

    Files that the manifest does not list are not looked at. Reads every byte, in a stream.
    """
    try:
        files = read_manifest(folder)
    except UserError as error:
        return [f"{error.what}: {error.why}" if error.why else error.what]
    reasons = [_differs(Path(folder) / name, name, record) for name, record in files.items()]
    return [reason for reason in reasons if reason]


def newest_valid(folder: str | os.PathLike[str], pattern: str) -> tuple[Path | None, list[tuple[Path, list[str]]]]:
    """The newest whole folder among `folder`/`pattern` (a shell pattern), and those newer that had to be passed over.

    Newest is the greatest by the numbers in the name (`step-900` < `step-1000`), never by a clock. Stops at the first
    valid one, so a good newest costs one reading. (None, []) when nothing matches.
    """
    passed_over: list[tuple[Path, list[str]]] = []
    for path in sorted(_candidates(Path(folder), pattern), key=lambda p: natural_key(p.name), reverse=True):
        reasons = verify_folder(path)
        if not reasons:
            return path, passed_over
        passed_over.append((path, reasons))
    return None, passed_over


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts names by the numbers in them: 'step-9' before 'step-10'."""
    parts = re.split(r"([0-9]+)", name)
    return [(1, int(part), "") if i % 2 else (0, 0, part) for i, part in enumerate(parts)]


def find_unlisted(folder: Path) -> list[str]:
    """Files below `folder` that its manifest does not list: somebody else put them there."""
    return sorted(set(files_below(folder)) - set(read_manifest(folder)) - {NAME})


def files_below(folder: Path) -> Iterator[str]:
    """Every non-folder below `folder`, relative, with forward slashes; links are named, not followed."""
    for root, folders, files in os.walk(folder, onerror=_raise):
        links = [name for name in folders if os.path.islink(os.path.join(root, name))]
        for name in sorted(files + links):
            yield (Path(root) / name).relative_to(folder).as_posix()


class _NewerError(ValueError):
    pass


def _decode(data: bytes) -> dict[str, FileRecord]:
    content = json.loads(data)
    if content["format"] == FORMAT and type(content["version"]) is int and content["version"] > VERSION:
        raise _NewerError(
            f"its version is {content['version']}, this program supports up to {VERSION}: upgrade compress"
        )
    files = {name: FileRecord(str(row["sha256"]), int(row["size"])) for name, row in content["files"].items()}
    if encode(files) != data or any(_unsafe(name) for name in files):
        raise ValueError
    return files


def _unsafe(name: str) -> bool:
    path = PurePosixPath(name)
    return path.is_absolute() or ".." in path.parts or not path.parts or "\0" in name


def _candidates(folder: Path, pattern: str) -> Iterator[Path]:
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        if fnmatch.fnmatchcase(name, pattern) and not name.startswith(temporary.PREFIX) and (folder / name).is_dir():
            yield folder / name


def _differs(path: Path, name: str, record: FileRecord) -> str | None:
    try:
        if not path.is_file():
            return f"{name}: missing" if not path.exists() else f"{name}: not a file"
        if (size := path.stat().st_size) != record.size:
            return f"{name}: {size} bytes instead of {record.size}"
        return None if _hash(path) == record else f"{name}: content changed (sha256 differs)"
    except OSError as error:
        return f"{name}: cannot be read ({error.strerror})"


def _hash(path: Path) -> FileRecord:
    digest, size = hashlib.sha256(), 0
    with open(path, "rb", buffering=0) as file:
        buffer = memoryview(bytearray(_CHUNK))
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            size += count
    return FileRecord(digest.hexdigest(), size)


def _raise(error: OSError) -> None:
    raise error
