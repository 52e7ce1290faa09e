"""What the disk says, told to a person: free space, and every OSError of a write as one clear line."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

from compress.errors import ExitCode, UserError

_FULL = {errno.ENOSPC, errno.EDQUOT}
_BROKEN = {errno.EIO, errno.ESTALE, errno.ENXIO, errno.ENODEV}
_HANDLES = {errno.EMFILE, errno.ENFILE}
RESOURCE_ERRNOS = frozenset(_FULL | _BROKEN | _HANDLES | {errno.EROFS})
"""Errors of the disk itself: whoever meets one while writing means the disk, whatever it was writing."""

_WRONG_PATH = {
    errno.EACCES: "permission denied",
    errno.EPERM: "permission denied",
    errno.ENAMETOOLONG: "the name is too long for this file system",
    errno.ENOTDIR: "a part of the path is a file, not a folder",
    errno.EISDIR: "is a folder, not a file",
    errno.ELOOP: "the path contains a loop of symbolic links",
    errno.EEXIST: "exists already, as another type of file",
}


def free_bytes(path: str | os.PathLike[str]) -> int:
    """Bytes that this user may still write where `path` is, or will be once its missing parents are made."""
    here = Path(os.path.abspath(path))
    while not here.exists() and here != here.parent:
        here = here.parent
    return shutil.disk_usage(here).free


def require_free(path: str | os.PathLike[str], needed: int) -> None:
    """Refuse before any work when fewer than `needed` bytes are free at `path` (UserError, exit 5)."""
    if free_bytes(path) < needed:
        raise explain(OSError(errno.ENOSPC, "No space left on device"), path, needed)


def explain(error: OSError, path: str | os.PathLike[str], needed: int | None = None) -> UserError:
    """The OSError of a write to `path` as a UserError; `needed` is what the write would take, in bytes."""
    where, code = os.fspath(path), error.errno or 0
    if code in _FULL:
        space = _space(path, needed)
        do = "free some space or write somewhere else"
        return UserError("the disk is full", where=where, why=space, do=do, code=ExitCode.RESOURCES)
    if code == errno.EROFS:
        do = "write somewhere else, or remount it as writable"
        return UserError("the file system is read-only", where=where, do=do, code=ExitCode.RESOURCES)
    if code in _BROKEN:
        what, why = f"the disk failed ({errno.errorcode[code]})", f"{error.strerror}; {_space(path, needed)}"
        return UserError(what, where=where, why=why, do="check the disk or mount", code=ExitCode.RESOURCES)
    if code in _HANDLES:
        do = "raise the limit (ulimit -n) or use fewer workers"
        return UserError("too many open files", where=where, do=do, code=ExitCode.RESOURCES)
    if code == errno.ENOENT:
        what = "the folder to write to no longer exists"
        return UserError(what, where=where, do="check whether it was moved or unmounted", code=ExitCode.RESOURCES)
    what = _WRONG_PATH.get(code, "cannot be written")
    return UserError(what, where=where, why=None if code in _WRONG_PATH else str(error), do="choose another path")


@contextmanager
def report_write_errors(path: str | os.PathLike[str], needed: int | None = None) -> Iterator[None]:
    """Inside this block an OSError means that writing `path` failed, and leaves as a UserError that says so."""
    try:
        yield
    except OSError as error:
        raise explain(error, path, needed) from error


def fsync_folder(path: str | os.PathLike[str]) -> None:
    """Make the names inside the folder survive a power cut: a rename is durable only after this."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def number_folders(plain: Path) -> Iterator[Path]:
    """`plain`, `plain`-2, `plain`-3 … without end."""
    yield plain
    yield from (plain.with_name(f"{plain.name}-{number}") for number in count(2))


def find_free_folder(plain: Path) -> Path:
    """The first of `number_folders` where nothing is."""
    return next(p for p in number_folders(plain) if not (p.exists() or p.is_symlink()))


def take_free_folder(plain: Path) -> Path:
    """Make the first of `number_folders` where nothing is: of several processes that ask at once, each gets another."""
    return next(path for path in number_folders(plain) if make_new_folder(path))


def make_new_folder(path: Path) -> bool:
    """Make a folder with its missing parents; False where something is."""
    while True:
        make_folder(path.parent)
        with report_write_errors(path):
            try:
                path.mkdir()
            except FileExistsError:
                return False
            except FileNotFoundError:  # another process gave its folder back, and the parent with it
                continue
            return True


def make_folder(path: str | os.PathLike[str]) -> Path:
    """The folder `path` with its missing parents, durably; itself when it is there already."""
    refuse_nul(path)
    here = Path(os.path.abspath(path))
    missing = []
    with report_write_errors(here):
        while not here.is_dir():
            missing.append(here)
            if here == here.parent:
                break
            here = here.parent
        for folder in reversed(missing):
            folder.mkdir(exist_ok=True)
            fsync_folder(folder.parent)
    return Path(os.path.abspath(path))


def refuse_nul(path: str | os.PathLike[str]) -> None:
    """Raise UserError for a path that no system call takes."""
    if "\0" in os.fspath(path):
        raise UserError("a path cannot contain a NUL character", where=os.fspath(path), do="choose another path")


def open_log(path: str | os.PathLike[str]) -> BinaryIO:
    """A file that another process appends its output to, in a folder that is made where it is missing. It may end
    anywhere: nobody relies on it."""
    made = make_folder(Path(path).parent) / Path(path).name
    with report_write_errors(made):
        return made.open("ab")


def remove_file(path: str | os.PathLike[str]) -> None:
    """A file of no more use, if it is there."""
    with report_write_errors(path):
        Path(path).unlink(missing_ok=True)


def human_bytes(count: float) -> str:
    """1234567 → '1.2 MB' (powers of ten, as disks are sold)."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"


def _space(path: str | os.PathLike[str], needed: int | None) -> str:
    try:
        free = f"{human_bytes(free_bytes(path))} free"
    except OSError:
        free = "free space unknown"
    return free if not needed else f"at least {human_bytes(needed)} needed, {free}"
