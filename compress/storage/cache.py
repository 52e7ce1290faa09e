"""The user's cache folder: what can be made or fetched again, each entry whole or not there, for this user alone."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from compress.errors import ExitCode, UserError
from compress.storage import atomic
from compress.storage.lock import file_lock
from compress.storage.trees import remove_tree

LOCK = ".lock"
LOCK_SECONDS = 3600.0  # another process may be fetching a large model
_in_use: dict[Path, int] = {}


def cache_folder() -> Path:
    """Where what can be made again is kept: COMPRESS_CACHE, else `compress` in the user's cache folder."""
    named = os.environ.get("COMPRESS_CACHE")
    if named:
        return Path(named).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "compress"


def private_folder(name: str) -> Path:
    """The folder `name` of the cache, made if need be, that this user alone may enter; name: one or more levels.

    Raises UserError (environment) when one of them is a link, or belongs to somebody else.
    """
    place = atomic.make_folder(cache_folder())
    for level in name.split("/"):
        place /= level
        _make_private(place)
    return place


def _make_private(place: Path) -> None:
    with atomic.report_write_errors(place):
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        status = place.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise UserError(
                "is not a folder that belongs to you",
                where=str(place),
                do="set COMPRESS_CACHE to a folder that belongs to you",
                code=ExitCode.ENVIRONMENT,
            )
        if stat.S_IMODE(status.st_mode) != 0o700:
            place.chmod(0o700)


def keep_folder(parent: Path, key: str | None, fill: Callable[[Path], None], most: int) -> Path:
    """The folder `parent`/`key`, written by `fill` into a temporary one unless it is there, whole, and all of it is
    this user's: whoever could once write to `parent` may have left an entry there.

    key None: always filled, under a name of its own.  most: entries that stay in `parent`, those used last; one that a
    process of this machine got from here and may still read stays in any case. Whatever `fill` raises comes through,
    and leaves no entry.
    """
    parent = atomic.make_folder(parent)
    with file_lock(parent / LOCK, timeout=LOCK_SECONDS):
        entry = parent / (key or secrets.token_hex(8))
        if not _is_own(entry) or atomic.verify_folder(entry):
            remove_tree(entry, parent)  # missing, damaged, or of somebody else
            with atomic.new_folder(entry) as temp:
                fill(temp)
        _hold(entry)
        with suppress(OSError):
            os.utime(entry)
        _remove_unused(parent, most)
    return entry


def _is_own(entry: Path) -> bool:
    """Whether the entry and all files and folders below it are this user's, and none of them is a link."""
    user = os.geteuid()
    below = (os.path.join(root, name) for root, folders, files in os.walk(entry) for name in (*folders, *files))
    try:
        for path in (entry, *below):
            status = os.lstat(path)
            if status.st_uid != user or stat.S_ISLNK(status.st_mode):
                return False
    except FileNotFoundError:
        return False
    return True


def _hold(entry: Path) -> None:
    """A shared lock on the entry until this process ends."""
    if (before := _in_use.pop(entry, None)) is not None:
        os.close(before)
    descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    with suppress(OSError):  # a file system without such locks
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    _in_use[entry] = descriptor


def _remove_unused(parent: Path, most: int) -> None:
    entries = [path for path in parent.iterdir() if atomic.is_ours(path)]
    for entry in sorted(entries, key=lambda path: path.stat().st_mtime_ns, reverse=True)[most:]:
        descriptor = os.open(entry, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove_tree(entry, parent)
        except OSError:
            continue  # somebody reads it
        finally:
            os.close(descriptor)
