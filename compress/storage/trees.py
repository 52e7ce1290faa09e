"""Folders that another program wrote for us, such as a run's artifacts in the store: measured, copied, removed."""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections.abc import Iterable
from pathlib import Path

from compress.errors import ExitCode, UserError
from compress.storage import manifest, temporary
from compress.storage.disk import fsync_folder, report_write_errors
from compress.storage.faults import fault, point

_ASIDE = point("tree.after_rename")


def remove_tree(path: str | os.PathLike[str], below: str | os.PathLike[str]) -> int:
    """Delete the folder `path` with all that is in it; returns the bytes of its files. Nothing there: 0.

    At any moment it is there whole, or gone under its name. Links inside are removed, never followed. Raises UserError
    (refused) unless it is a real folder below the real folder `below`, with no link on the way.
    """
    folder, root = Path(os.path.abspath(path)), Path(os.path.abspath(below))
    if not os.path.lexists(folder):
        return 0
    inside = root in folder.parents and folder.resolve() == root.resolve() / folder.relative_to(root)
    if not inside or folder.is_symlink() or not folder.is_dir():
        why = f"it is a link, a file, or not below {root}"
        raise UserError("cannot be removed", where=str(folder), why=why, code=ExitCode.REFUSED)
    size = tree_bytes(folder)
    with report_write_errors(folder), temporary.hold_writer_lock(folder.parent):
        aside = temporary.make_name_beside(folder, temporary.DELETED)
        os.rename(folder, aside)
        fault(_ASIDE)
        fsync_folder(folder.parent)
        temporary.discard(aside)
    return size


def tree_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes of the plain files at and below `path`, of one with several names once; links are not followed, what cannot
    be read counts nothing."""
    sizes: dict[tuple[int, int], int] = {}
    if os.path.isfile(path) and not os.path.islink(path):
        return os.path.getsize(path)
    for root, _, names in os.walk(path):
        for name in names:
            try:
                status = os.lstat(os.path.join(root, name))
            except OSError:
                continue
            if stat.S_ISREG(status.st_mode):
                sizes[status.st_dev, status.st_ino] = status.st_size
    return sum(sizes.values())


def second_names(folder: str | os.PathLike[str]) -> list[str]:
    """Names below `folder` of files that have a name before them: as deep or less, then in order of the alphabet.

    Who copies the folder without them copies all that is in it. Paths are relative, with forward slashes.
    """
    found: set[tuple[int, int]] = set()
    further = []
    for name in sorted(manifest.files_below(Path(folder)), key=lambda name: (name.count("/"), name)):
        status = os.lstat(os.path.join(folder, name))
        if (identity := (status.st_dev, status.st_ino)) in found:
            further.append(name)
        found.add(identity)
    return further


def drop_names(folder: str | os.PathLike[str], names: Iterable[str]) -> None:
    """Remove files below `folder`, part of a folder that is being written, and the folders that they leave empty."""
    for name in names:
        path = Path(folder) / name
        path.unlink()
        if path.parent != Path(folder) and not any(path.parent.iterdir()):
            path.parent.rmdir()


def restore_names(folder: str | os.PathLike[str]) -> None:
    """Give files of a folder of ours, copied without its `second_names`, these names again, as its manifest lists them.

    Nothing where there is no manifest, or no file of the same content. Raises UserError when the disk fails.
    """
    root = Path(folder)
    if not manifest.is_ours(root):
        return
    files = manifest.read_manifest(root)
    there = {record: name for name, record in files.items() if (root / name).is_file()}
    with report_write_errors(root):
        for name, record in files.items():
            if (root / name).exists() or record not in there:
                continue
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            link_or_copy(root / there[record], root / name)


def link_or_copy(source: Path, target: Path) -> None:
    """The same file under a second name; a copy where the file system cannot."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def copy_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files that lie in the folder `source` into `target`, part of a folder that is being written. Never as a
    second name of the original, by which a copy without `second_names` would lack it. Raises OSError."""
    target.mkdir(exist_ok=True)
    for name in names:
        shutil.copyfile(source / name, target / name)


def copy_tree(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """Copy the plain files below `source` into the new folder `target`, part of a folder that is being written.

    Links are left behind: they lead out of what is copied. Raises OSError when something cannot be read or written.
    """
    shutil.copytree(source, target, symlinks=True, ignore=_not_plain, copy_function=shutil.copyfile)


def add_json(path: str | os.PathLike[str], content: object) -> None:
    """Write a new JSON file into a folder that is being written, which makes it durable as a whole. Raises OSError."""
    place = Path(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(place, "x", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _not_plain(folder: str, names: list[str]) -> list[str]:
    modes = {name: os.lstat(os.path.join(folder, name)).st_mode for name in names}
    return [name for name, mode in modes.items() if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))]
