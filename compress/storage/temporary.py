"""Temporary names beside a target, and the removal of those that a killed process left behind.

A name certifies itself: it carries a checksum of its other parts, so nothing that somebody else called `.tmp-...` is
ever taken for ours. Whoever has a temporary in a folder holds a shared lock on that folder; leftovers are removed only
by one who gets the lock alone, hence when no writer is alive. Where a file system cannot lock a folder, they stay.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
import secrets
import shutil
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

from compress.errors import UserError
from compress.storage.disk import fsync_folder
from compress.storage.faults import fault, point

PREFIX = ".tmp-"
NEW, OLD, DELETED = "new", "old", "del"
"""What a leftover was: being written; moved aside for a replacement (to be restored if that never came); deleted."""

_NAME = re.compile(r"\.tmp-(new|old|del)-([0-9a-f]{8})([0-9a-f]{8})-(.+)", re.DOTALL)
_LONGEST = 255 - len(PREFIX + "new-" + 16 * "0" + "-")
_PATIENCE = 30.0

_BEFORE_RESTORE = point("clean.before_restore")
_BEFORE_DELETE = point("clean.before_delete")
_AFTER_DELETE = point("clean.after_delete")


def make_name_beside(target: Path, kind: str) -> Path:
    """A fresh temporary name next to `target`. UserError when the target's own name leaves no room for it."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST:
        raise UserError("the name is too long", where=str(target), why=f"at most {_LONGEST} bytes", do="shorten it")
    token = secrets.token_hex(4)
    return target.with_name(f"{PREFIX}{kind}-{token}{_check(kind, token, name)}-{name}")


def parse(name: str) -> tuple[str, str] | None:
    """(kind, name of the target) of a temporary that we made, None for any other name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    kind, token, check, target = match.groups()
    return (kind, target) if check == _check(kind, token, target) else None


def is_being_filled(folder: Path) -> bool:
    """Whether a folder is a temporary of ours, or lies in one, that is to become a finished folder."""
    return any(name.startswith(PREFIX) and (parse(name) or ("",))[0] == NEW for name in folder.parts)


@contextlib.contextmanager
def hold_writer_lock(folder: Path) -> Iterator[None]:
    """Hold the shared lock of a writer on `folder`; the first one in removes what dead writers left."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _try_lock(descriptor, fcntl.LOCK_EX):
            _clean(folder)
        _share(descriptor)
        yield
    finally:
        os.close(descriptor)


def clean(folder: str | os.PathLike[str]) -> None:
    """Restore what an interrupted replacement moved aside in `folder`, delete what dead writers left there."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), hold_writer_lock(Path(folder)):
        pass


def discard(path: Path) -> None:
    """Delete a temporary of ours, file or folder, as far as the disk allows: the rest is cleaned by a later write."""
    if parse(path.name) is None:
        raise ValueError(f"{path} is not a temporary name of ours")
    if path.is_symlink():
        return
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(OSError):
            path.unlink()


def _clean(folder: Path) -> None:
    for name in sorted(os.listdir(folder)):
        parsed = parse(name) if name.startswith(PREFIX) else None
        if parsed is None:
            continue
        kind, target = parsed
        if kind == OLD and not os.path.lexists(folder / target):
            fault(_BEFORE_RESTORE)
            with contextlib.suppress(OSError):
                os.rename(folder / name, folder / target)
                fsync_folder(folder)
            continue
        fault(_BEFORE_DELETE)
        discard(folder / name)
        fault(_AFTER_DELETE)


def _share(descriptor: int) -> None:
    """Go from no lock, or the lone one, to the shared one; another's cleaning is waited for."""
    until = time.monotonic() + _PATIENCE
    while not _try_lock(descriptor, fcntl.LOCK_SH):
        if time.monotonic() > until:  # locks do not work here, and then nobody else gets one for cleaning either
            return
        time.sleep(0.01)


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except OSError as error:
        # Anything but "held by another" means that this file system has no such lock: sharing then needs none.
        return kind == fcntl.LOCK_SH and error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _check(kind: str, token: str, name: str) -> str:
    return f"{zlib.crc32(os.fsencode(f'compress {kind} {token} {name}')):08x}"
