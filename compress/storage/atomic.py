"""The only writer of finished files and folders: after a kill or a power cut at any moment, old or new is there, whole.

A file: a temporary beside it, fsync, rename, fsync of the folder. A folder: a temporary folder, a manifest with the
sha256 of each file, fsync of everything, rename, fsync of the parent; a file in it is therefore written under its name
at once, and made durable once, with the folder. What was left behind by a dead writer is removed
by the next write into the same folder; nothing that we did not write is ever removed or replaced.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import json
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compress.errors import ExitCode, UserError
from compress.storage import manifest, temporary, tensorfile
from compress.storage.disk import (
    RESOURCE_ERRNOS,
    explain,
    free_bytes,
    fsync_folder,
    human_bytes,
    make_folder,
    refuse_nul,
    report_write_errors,
    require_free,
)
from compress.storage.faults import fault, point
from compress.storage.manifest import FileRecord, is_ours, newest_valid, read_manifest, verify_folder
from compress.storage.temporary import clean

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "FileRecord",
    "clean",
    "explain",
    "free_bytes",
    "human_bytes",
    "is_ours",
    "make_folder",
    "new_folder",
    "newest_valid",
    "read_manifest",
    "remove_folder",
    "require_free",
    "require_writable",
    "set_aside",
    "report_write_errors",
    "verify_folder",
    "write_bytes",
    "write_chunks",
    "write_json",
    "write_safetensors",
    "write_text",
]

_FILE_CREATED = point("file.after_create")
_FILE_CHUNK = point("file.after_chunk")
_FILE_SYNCED = point("file.after_fsync")
_FILE_REPLACED = point("file.after_replace")
_FILE_DONE = point("file.after_folder_fsync")
_FOLDER_CREATED = point("folder.after_create")
_FOLDER_FILLED = point("folder.after_fill")
_FOLDER_LISTED = point("folder.after_manifest")
_FOLDER_FILE_SYNCED = point("folder.after_file_fsync")
_FOLDER_SYNCED = point("folder.after_fsync")
_FOLDER_ASIDE = point("folder.after_move_aside")
_FOLDER_RENAMED = point("folder.after_rename")
_FOLDER_DURABLE = point("folder.after_parent_fsync")
_FOLDER_DONE = point("folder.after_delete_old")
_REMOVE_BEGUN = point("remove.before_rename")
_REMOVE_RENAMED = point("remove.after_rename")
_REMOVE_DURABLE = point("remove.after_parent_fsync")
_REMOVE_DONE = point("remove.after_delete")


# --- files ------------------------------------------------------------------------------------------------------


def write_bytes(path: str | os.PathLike[str], data: bytes) -> None:
    """Write or replace the file `path`, making missing parent folders. UserError when the disk or the path refuses."""
    _write(Path(os.path.abspath(path)), [data], len(data))


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """`write_bytes` of `text` in UTF-8, line ends as they are."""
    write_bytes(path, text.encode())


def write_chunks(path: str | os.PathLike[str], chunks: Iterable[bytes], size: int) -> None:
    """`write_bytes` of chunks that come one after the other. size: bytes of all, to be named if the disk is full."""
    _write(Path(os.path.abspath(path)), chunks, size)


def write_json(path: str | os.PathLike[str], obj: Any) -> None:
    """`write_text` of `obj` as indented JSON, keys in their order. ValueError for NaN and infinities: not JSON."""
    write_text(path, json.dumps(obj, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None
) -> None:
    """Write `tensors` as a safetensors file; equal tensors and metadata give equal bytes.

    Tensors may be on any device and of any layout; one at a time is copied to the host. ValueError when a tensor is
    there under two names (store it once) or has a dtype that the format cannot say.
    """
    total, chunks = tensorfile.encode(tensors, metadata)
    _write(Path(os.path.abspath(path)), chunks, total)


def _write(path: Path, chunks: Iterable[bytes | memoryview], size: int) -> None:
    if temporary.is_being_filled(path.parent) and not os.path.lexists(path):
        return _write_into_new_folder(path, chunks, size)
    make_folder(path.parent)
    with report_write_errors(path, size), temporary.hold_writer_lock(path.parent):
        temp = temporary.make_name_beside(path, temporary.NEW)
        try:
            with os.fdopen(_create(temp), "wb", buffering=0) as file:
                _fill(file.fileno(), chunks)
                os.fsync(file.fileno())
            fault(_FILE_SYNCED)
            os.replace(temp, path)
        except BaseException:
            temporary.discard(temp)
            raise
        fault(_FILE_REPLACED)
        fsync_folder(path.parent)
        fault(_FILE_DONE)


def _write_into_new_folder(path: Path, chunks: Iterable[bytes | memoryview], size: int) -> None:
    """Nobody reads the folder before `new_folder` has made all of it durable, or deletes it."""
    with report_write_errors(path, size):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _create(path)
        try:
            with os.fdopen(descriptor, "wb", buffering=0) as file:
                _fill(file.fileno(), chunks)
        except BaseException:  # who fills the folder may do without this file
            path.unlink()
            raise


def _create(path: Path) -> int:
    # O_EXCL and O_NOFOLLOW: a link planted at the temporary name is refused, not followed. 0o666 lets the umask decide.
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)


def _fill(descriptor: int, chunks: Iterable[bytes | memoryview]) -> None:
    fault(_FILE_CREATED)
    for chunk in chunks:
        _write_all(descriptor, chunk)
        fault(_FILE_CHUNK)


def _write_all(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


# --- folders ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def new_folder(
    target: str | os.PathLike[str], *, replace: bool = False, parents: bool = True, needed: int | None = None
) -> Iterator[Path]:
    """Yield an empty temporary folder to fill; when the block ends well it becomes `target`, with its manifest.

    When the block raises, the temporary is removed and `target` is as it was. An empty folder may lie at `target`.
    Raises UserError (refused) when anything else does, unless `replace` and it is a folder that we wrote in which
    nobody put files of their own; (resources) when the disk fails. `parents=False`: the parent must be there still, so
    that a run whose folder was unmounted fails instead of writing beneath the mount point. `needed`: bytes that the
    folder will take, to be named if the disk is full.
    """
    path = Path(os.path.abspath(target))
    if parents:
        make_folder(path.parent)
    _refuse_occupied(path, replace)
    with contextlib.ExitStack() as scope:
        with report_write_errors(path, needed):
            scope.enter_context(temporary.hold_writer_lock(path.parent))
        temp, filled = temporary.make_name_beside(path, temporary.NEW), False
        try:
            with report_write_errors(path, needed):
                temp.mkdir()
                fault(_FOLDER_CREATED)
            yield temp
            filled = True
            fault(_FOLDER_FILLED)
            _settle(temp)
        except BaseException as error:
            size = needed or _size(temp)
            temporary.discard(temp)
            if isinstance(error, OSError) and (filled or error.errno in RESOURCE_ERRNOS):
                raise explain(error, path, size) from error
            if isinstance(error, UserError) and str(temp) in (error.where or ""):
                raise _renamed(error, temp, path) from error
            raise
        with report_write_errors(path, needed):
            _publish(temp, path, replace)


def require_writable(*targets: str | os.PathLike[str] | None) -> None:
    """Raise UserError where one of the files or folders could not be made, so that this is found before the work whose
    result they take. None: one that was not asked for. Nothing is left behind, and missing parents are not made."""
    for target in targets:
        if target is not None:
            _require_writable(target)


def _require_writable(target: str | os.PathLike[str]) -> None:
    refuse_nul(target)
    path = Path(os.path.abspath(target))
    while not os.path.lexists(path.parent):
        path = path.parent
    try:
        with temporary.hold_writer_lock(path.parent):
            probe = temporary.make_name_beside(path, temporary.NEW)
            probe.mkdir()
            probe.rmdir()
    except FileNotFoundError:  # as in /proc
        raise UserError("cannot be written", where=os.fspath(target), do="choose another path") from None
    except OSError as error:
        raise explain(error, target) from error


def remove_folder(path: str | os.PathLike[str]) -> None:
    """Delete a folder that we wrote: at any moment it is there whole, or gone under its name. Nothing there: no-op.

    Raises UserError (refused) for a link, a folder without a readable manifest of ours, or with files of others in it.
    """
    folder = Path(os.path.abspath(path))
    if not os.path.lexists(folder):
        return
    _refuse_foreign(folder, "cannot be removed")
    with report_write_errors(folder), temporary.hold_writer_lock(folder.parent):
        fault(_REMOVE_BEGUN)
        aside = temporary.make_name_beside(folder, temporary.DELETED)
        os.rename(folder, aside)
        fault(_REMOVE_RENAMED)
        fsync_folder(folder.parent)
        fault(_REMOVE_DURABLE)
        temporary.discard(aside)
        fault(_REMOVE_DONE)


def set_aside(path: str | os.PathLike[str]) -> Path:
    """Give what lies at `path` the name `<path>.changed-<n>`, the first that is free; returns that. For what is in the
    way and may be somebody's work. Raises UserError (resources) when the disk fails."""
    folder = Path(os.path.abspath(path))
    free = (folder.with_name(f"{folder.name}.changed-{n}") for n in itertools.count(1))
    aside = next(one for one in free if not os.path.lexists(one))
    with report_write_errors(folder):
        os.rename(folder, aside)
        fsync_folder(folder.parent)
    return aside


def _refuse_occupied(path: Path, replace: bool) -> None:
    if not os.path.lexists(path) or (path.is_dir() and not path.is_symlink() and not any(path.iterdir())):
        return
    if not replace:
        raise UserError("exists already", where=str(path), do="choose another folder", code=ExitCode.REFUSED)
    _refuse_foreign(path, "cannot be replaced")


def _refuse_foreign(path: Path, what: str) -> None:
    why = None
    if path.is_symlink() or not path.is_dir():
        why = "it is a symbolic link" if path.is_symlink() else "it is not a folder"
    elif not is_ours(path):
        why = "it has no manifest.json that compress wrote"
    elif others := manifest.find_unlisted(path):
        why = f"it contains other files: {', '.join(others[:3])}{' …' if len(others) > 3 else ''}"
    if why is not None:
        raise UserError(what, where=str(path), why=why, do="move it to another place", code=ExitCode.REFUSED)


def _settle(temp: Path) -> None:
    """Make the folder's content final and durable: plain files only, modes by umask, manifest, fsync of everything."""
    if (temp / manifest.NAME).exists():
        raise ValueError(f"{manifest.NAME} is written by new_folder alone")
    for name in manifest.files_below(temp):
        if not stat.S_ISREG((temp / name).lstat().st_mode):
            raise ValueError(f"{name} is not a plain file: it cannot be part of a finished folder")
    data = manifest.encode(manifest.build(temp))
    descriptor = _create(temp / manifest.NAME)
    with os.fdopen(descriptor, "wb", buffering=0) as file:
        # A file that we create has the mode of the umask; libraries write theirs as 0600.
        mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
        _write_all(file.fileno(), data)
    fault(_FOLDER_LISTED)
    for name in manifest.files_below(temp):
        _finish_file(temp / name, mode)
        fault(_FOLDER_FILE_SYNCED)
    for root, _, _ in os.walk(temp, topdown=False):
        fsync_folder(root)
    fault(_FOLDER_SYNCED)


def _finish_file(path: Path, mode: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchmod(descriptor, mode)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(temp: Path, path: Path, replace: bool) -> None:
    """Give the finished folder its name. From the rename on nothing is undone: the new folder stands."""
    old = None
    try:
        _refuse_occupied(path, replace)
        if replace and path.exists():
            old = _swap(temp, path)
        else:
            os.rename(temp, path)
    except BaseException as error:
        temporary.discard(temp)
        if isinstance(error, OSError) and error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
            raise UserError(
                "was created by another process in the meantime", where=str(path), code=ExitCode.REFUSED
            ) from error
        raise
    fault(_FOLDER_RENAMED)
    fsync_folder(path.parent)
    fault(_FOLDER_DURABLE)
    if old is not None:
        temporary.discard(old)
        fault(_FOLDER_DONE)


def _swap(temp: Path, path: Path) -> Path:
    """Put `temp` at `path`; returns where the old folder is now.

    In one step where the system can exchange two names. Else the old one is moved aside first; a kill between the two
    renames leaves it there, and the next write into the parent (or `clean`) brings it back.
    """
    if _exchange(temp, path):
        return temp
    old = temporary.make_name_beside(path, temporary.OLD)
    os.rename(path, old)
    try:
        fault(_FOLDER_ASIDE)
        os.rename(temp, path)
    except BaseException:
        os.rename(old, path)
        raise
    return old


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two names atomically (Linux renameat2); False where the system or the file system cannot."""
    at_here, exchange = -100, 2
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    if renameat2(at_here, os.fsencode(first), at_here, os.fsencode(second), exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.EPERM):
        return False
    raise OSError(code, os.strerror(code), str(second))


def _renamed(error: UserError, temp: Path, path: Path) -> UserError:
    """The same error, naming the folder that the user asked for instead of the temporary one."""
    where = (error.where or "").replace(str(temp), str(path))
    return UserError(error.what, where=where, why=error.why, do=error.do, code=error.code)


def _size(folder: Path) -> int:
    """Bytes in the folder so far: a full disk needs at least that much."""
    with contextlib.suppress(OSError):
        return sum((folder / name).lstat().st_size for name in manifest.files_below(folder))
    return 0
