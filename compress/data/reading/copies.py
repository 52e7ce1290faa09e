"""Copies of files of an object store in the user's cache: training data is downloaded once and read as a local file.

An entry is found by the address, the names and sizes of its files and their ETags: where the store holds other bytes,
they are downloaded. Readers know local paths only; what they say is printed with the address in place of the path.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from compress.console.console import watch_slow_work
from compress.contracts import Progress
from compress.data.reading import beir
from compress.data.reading.files import SUFFIXES
from compress.data.reading.places import INFO, SPLITS
from compress.data.reading.remote import SCHEME, RemotePath
from compress.errors import ExitCode, UserError
from compress.storage import atomic
from compress.storage.cache import cache_folder, keep_folder, private_folder

KEPT = 2
"""Contents of one address that stay in the cache, those used last."""
_BLOCK = 8 << 20
"""Bytes of one request."""
_MB = 1_000_000
_AT_ONCE = 16
"""Files whose ETags are asked for at once."""
_SAVED = "dataset_dict.json"
"""In a folder of `datasets`, whose splits are folders."""

_addresses: dict[Path, str] = {}
"""Entry of the cache → the address that its files are below, without the query; of all that this process uses."""
_copies: dict[str, Path] = {}
"""Address → its copy, of all that this command has asked for."""


@dataclass(frozen=True)
class _File:
    """A file to copy. name: below the folder that is read, or of the file itself.  mark: as of `identify`."""

    name: str
    place: RemotePath
    size: int
    mark: str


def local_name(name: str) -> str:
    """`name` of data as the readers take it: of an address (s3://…) the path of its copy, downloaded unless the cache
    has what the store holds; every other name as it is.

    Raises UserError where nothing is at the address, where it is not readable or no data, and for a full disk.
    """
    return str(copy_here(RemotePath.parse(name))) if name.startswith(SCHEME) else name


def copy_here(place: RemotePath) -> Path:
    """The copy of a file or folder; the store is asked for it once in a command. Raises as `local_name`."""
    known = _copies.get(str(place))
    if known is not None and known.exists():
        return known
    files = _find_files(place)
    content = json.dumps([str(place), [[one.name, one.size, one.mark] for one in files]])
    parent = private_folder(f"s3/{hashlib.sha256(str(place).encode()).hexdigest()[:32]}")
    entry = parent / hashlib.sha256(content.encode()).hexdigest()[:32]
    if entry not in _addresses or not entry.is_dir():  # this process holds an entry that it has checked
        keep_folder(parent, entry.name, lambda temp: _download(place, files, temp), KEPT)
        _addresses[entry] = place.shown.removesuffix(f"/{place.name}")
    _copies[str(place)] = entry / place.name
    return _copies[str(place)]


def ask_stores_again() -> None:
    """The next command reads what the stores hold then."""
    _copies.clear()


@contextmanager
def show_addresses() -> Iterator[None]:
    """Inside this block, a UserError about a copy names the address."""
    try:
        yield
    except UserError as error:
        parts = (error.what, error.where, error.why, error.do)
        error.what, error.where, error.why, error.do = (part and show_address(part) for part in parts)  # type: ignore[assignment]
        error.args = (error.line(),)
        raise


def show_address(text: str) -> str:
    """A text with the addresses of copies in place of their paths."""
    for entry, address in list(_addresses.items()):
        text = text.replace(str(entry), address)
    return text


def select_files(names: Sequence[str]) -> list[str]:
    """Those of the files below a folder that a reader of data opens, sorted: files with rows and what describes them,
    but no hidden ones. In folders below it, only the splits of BEIR and of `datasets`."""
    paths = [PurePosixPath(name) for name in sorted(names)]
    top = {path.name for path in paths if len(path.parts) == 1}
    saved = _SAVED in top
    inner = (beir.JUDGED, beir.RUNS) if {beir.CORPUS, beir.QUERIES} <= top else ()
    known = {*SUFFIXES, ".trec"}
    return [
        str(path)
        for path in paths
        if path.suffix.lower() in known
        and not any(part.startswith(".") for part in path.parts)
        and (len(path.parts) == 1 or saved or path.parts[0] in inner)
    ]


def _find_files(place: RemotePath) -> list[_File]:
    """What is copied of a file or a folder. Raises UserError."""
    place.require_there()
    known = ", ".join(SUFFIXES)
    if place.is_dir():
        below = {one.key.removeprefix(f"{place.key}/"): one for one in place.list_below()}
        found = {name: below[name] for name in select_files(list(below))}
        if not found:
            why = f"{len(below):,} other files" if below else "it is empty"
            raise UserError("the folder has no files of data", where=str(place), why=why, do=f"known types: {known}")
    elif place.suffix.lower() not in SUFFIXES:
        what = f"cannot read '{place.suffix or place.name}' files as data"
        raise UserError(what, where=str(place), do=f"known types: {known}")
    else:
        found = {place.name: place} | _find_description(place)
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        marks = list(pool.map(_identify, found.values()))
    return [_File(name, found[name], *mark) for name, mark in zip(found, marks, strict=True)]


def _find_description(file: RemotePath) -> dict[str, RemotePath]:
    """The info.json beside a file that is called like a split, which describes it; empty where there is none."""
    beside = RemotePath(file.key.removesuffix(file.name) + INFO, file.query)
    stem = file.name.removesuffix(file.suffix)
    with suppress(UserError):  # who may read the file may not be allowed to look for others
        if any(stem in aliases for aliases in SPLITS.values()) and beside.exists():
            return {INFO: beside}
    return {}


def _identify(place: RemotePath) -> tuple[int, str]:
    try:
        return place.identify()
    except OSError as error:
        raise place.explain(error) from error


def _download(place: RemotePath, files: Sequence[_File], entry: Path) -> None:
    """The files into a new folder. Raises UserError where the disk is too small, or a file changes meanwhile."""
    total = sum(one.size for one in files)
    free = atomic.free_bytes(entry)
    if free < total:
        why = f"{atomic.human_bytes(total)} needed, {atomic.human_bytes(free)} free in {cache_folder()}"
        do = "free some space, or set COMPRESS_CACHE to a folder on another disk"
        raise UserError("no space to download the data", where=str(place), why=why, do=do, code=ExitCode.RESOURCES)
    base = entry / place.name if place.is_dir() else entry
    with watch_slow_work(f"download {place.shown}", math.ceil(total / _MB), "MB") as progress:
        done = 0
        for one in files:
            atomic.write_chunks(base / one.name, _read(one, done, progress), one.size)
            done += one.size


def _read(file: _File, before: int, progress: Progress) -> Iterator[bytes]:
    """The bytes of a file. before: those of the files before it."""
    read = 0
    try:
        with file.place.open() as stream:
            while block := stream.read(_BLOCK):
                read += len(block)
                progress.update((before + read) // _MB)
                yield block
        changed = file.place.identify() != (file.size, file.mark)
    except FileNotFoundError:
        changed = True
    except OSError as error:
        raise file.place.explain(error) from error
    if changed or read != file.size:
        raise UserError("the file changed while it was downloaded", where=str(file.place), do="try again")
