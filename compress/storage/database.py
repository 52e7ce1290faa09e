"""A whole copy of an sqlite database, taken while others may write to it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from compress.errors import ExitCode, UserError
from compress.storage import temporary
from compress.storage.atomic import write_bytes
from compress.storage.disk import fsync_folder, make_folder, report_write_errors, require_free
from compress.storage.faults import fault, point

_COPIED = point("database.after_copy")

BUSY_SECONDS = 20.0


def copy_database(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> int:
    """Copy an sqlite database to a new file; returns its bytes.

    The copy is of one moment (sqlite's own backup, which waits for writers), and has its name only once it is whole.
    Raises UserError when the target exists, the disk is full, or the source is no database.
    """
    path = Path(os.path.abspath(target))
    if os.path.lexists(path):
        raise UserError("exists already", where=str(path), do="choose another file", code=ExitCode.REFUSED)
    make_folder(path.parent)
    require_free(path, Path(source).stat().st_size)
    with report_write_errors(path), temporary.hold_writer_lock(path.parent):
        temp = temporary.make_name_beside(path, temporary.NEW)
        try:
            copy_content(source, temp)
            descriptor = os.open(temp, os.O_RDONLY | os.O_CLOEXEC)
            os.fsync(descriptor)
            os.close(descriptor)
            fault(_COPIED)
            os.rename(temp, path)
        except BaseException:
            temporary.discard(temp)
            raise
        fsync_folder(path.parent)
    return path.stat().st_size


def write_database(path: str | os.PathLike[str], data: bytes) -> None:
    """Write the bytes of a whole sqlite database to a new file, or in place of one that no process has open.

    Raises UserError when the disk or the path refuses.
    """
    target = Path(os.path.abspath(path))
    for suffix in ("-journal", "-wal"):  # of what stood here: sqlite would apply them to the new file
        target.with_name(target.name + suffix).unlink(missing_ok=True)
    write_bytes(target, data)


def copy_content(source: str | os.PathLike[str], target: str | os.PathLike[str]) -> None:
    """What `source` holds takes the place of what `target` holds; both are sqlite databases, `target` may be new.

    Raises UserError when one of them is no database, or stays locked by another process.
    """
    try:
        with (
            closing(sqlite3.connect(f"{Path(source).absolute().as_uri()}?mode=ro", uri=True)) as old,
            closing(sqlite3.connect(target, timeout=BUSY_SECONDS)) as new,
        ):
            old.execute(f"PRAGMA busy_timeout = {int(1000 * BUSY_SECONDS)}")
            old.backup(new)
    except sqlite3.Error as error:
        raise UserError(
            "the database cannot be copied", where=os.fspath(source), why=str(error), code=ExitCode.RESOURCES
        ) from error
