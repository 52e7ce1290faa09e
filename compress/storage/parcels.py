"""Files that are copied to another machine: packed here, and kept in the cache folder there by the digest of their
content. `sent` finds them there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from compress.errors import UserError
from compress.storage import manifest
from compress.storage.cache import keep_folder, private_folder

KEPT = 16
"""Parcels that stay on a machine, those used last."""
LEVELS = 3
"""Levels of a path that its copy keeps: a model is called by the names of its folder and of those around it."""
DESCRIPTION = "info.json"
"""What a file of data may have beside it; it describes its columns and labels."""


@dataclass(frozen=True)
class Parcel:
    """Files to copy. paths: as they were named: one folder, or files of one folder.  files: place in the copy → file.
    size: bytes of all files."""

    paths: tuple[str, ...]
    files: Mapping[str, Path]
    size: int

    @property
    def title(self) -> str:
        """What it is, for people."""
        first = self.paths[0]
        return first if len(self.paths) == 1 else f"{len(self.paths)} files of {Path(first).parent}"

    def pack(self) -> tuple[ParcelInfo, dict[str, bytes]]:
        """Read the files: what they are, and the content of each. Raises UserError for one that cannot be read."""
        content = {place: _read(file) for place, file in self.files.items()}
        records = {
            place: manifest.FileRecord(hashlib.sha256(data).hexdigest(), len(data)) for place, data in content.items()
        }
        places = {path: _place_of(path) for path in self.paths}
        told = manifest.encode(records) + "\n".join(sorted({*places.values()})).encode()
        return ParcelInfo(hashlib.sha256(told).hexdigest(), places), content


@dataclass(frozen=True)
class ParcelInfo:
    """What a parcel holds. digest: of the names and the content of its files.  places: path as it was named → place in
    the copy."""

    digest: str
    places: Mapping[str, str]

    def unpack(self, fetch: Callable[[], Mapping[str, bytes]]) -> dict[str, str]:
        """Path as it was named → copy here. fetch: gives the content; it is called unless a whole copy is here. Raises
        UserError when the cache folder cannot be written; then nothing is left."""

        def fill(folder: Path) -> None:
            for place, data in fetch().items():
                file = folder / place
                file.parent.mkdir(parents=True, exist_ok=True)
                with open(file, "xb") as out:  # the folder is made durable as a whole
                    out.write(data)

        folder = keep_folder(private_folder("sent"), self.digest[:32], fill, KEPT)
        return {path: str(folder / place) for path, place in self.places.items()}


def plan_parcels(paths: Iterable[str]) -> list[Parcel]:
    """Parcels for what was named: each folder is one, and so are the files of one folder. Reads no file. Raises
    UserError for what is not there, and for a folder that is empty or has links that lead out of it."""
    folders: dict[str, list[str]] = {}
    for path in sorted({*paths}):
        whole = os.path.abspath(path)
        folders.setdefault(whole if os.path.isdir(whole) else os.path.dirname(whole), []).append(path)
    return [_plan(tuple(named)) for named in folders.values()]


def _plan(paths: tuple[str, ...]) -> Parcel:
    files: dict[str, Path] = {}
    try:
        for path in map(Path, paths):
            if path.is_dir():
                files |= {f"{_place_of(path)}/{name}": file for name, file in _list_folder(path).items()}
                continue
            beside = path.parent / DESCRIPTION
            files |= {_place_of(file): file for file in (path, beside) if file == path or file.is_file()}
        return Parcel(paths, files, sum(file.stat().st_size for file in files.values()))
    except OSError as error:
        raise _explain(error, error.filename or paths[0]) from error


def _list_folder(folder: Path) -> dict[str, Path]:
    """Name below the folder → file; a link inside as the file that it leads to."""
    found: dict[str, Path] = {}
    for name in manifest.files_below(folder):
        file = (folder / name).resolve()
        if not file.is_file() or folder.resolve() not in file.parents:
            why = "it is a link out of the folder, a link to a folder, or no plain file"
            raise UserError("cannot be sent to another machine", where=str(folder / name), why=why)
        found[name] = file
    if not found:
        raise UserError("the folder is empty", where=str(folder))
    return found


def _place_of(path: str | Path) -> str:
    return "/".join(Path(os.path.abspath(path)).parts[1:][-LEVELS:])


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise _explain(error, str(file)) from error


def _explain(error: OSError, where: str) -> UserError:
    return UserError("cannot be read", where=where, why=error.strerror)
