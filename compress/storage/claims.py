"""Names that several processes share out among themselves: each is given to the first one that takes it.

A claim saves work and promises nothing: it outlives a process that is killed, and is then removed with all others when
no process is left (`clear`). What is made under a name must be right even if two processes make it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from compress.storage.disk import make_folder, report_write_errors
from compress.storage.trees import remove_tree

FOLDER = "claims"
FAILED = "failed"
"""The claim of a process that met an error which ends the work of all."""


def clear(base: str | os.PathLike[str]) -> None:
    """Give all names below the folder `base` back."""
    remove(base)
    make_folder(Path(base) / FOLDER)


def remove(base: str | os.PathLike[str]) -> None:
    """Remove what claims left below the folder `base`, when the work is done."""
    remove_tree(Path(base) / FOLDER, base)


def share_out(base: str | os.PathLike[str], names: Iterable[str]) -> Iterator[str]:
    """Those of the names that this process is the first to take; none after a process claimed FAILED."""
    for name in names:
        if is_taken(base, FAILED):
            return
        if take(base, name):
            yield name


def take(base: str | os.PathLike[str], name: str) -> bool:
    """Whether this process is the first to take the name. A folder is made for it: in one step on every file system."""
    place = Path(base) / FOLDER / name
    with report_write_errors(place):
        try:
            place.mkdir()
        except FileExistsError:
            return False
    return True


def is_taken(base: str | os.PathLike[str], name: str) -> bool:
    """Whether some process took the name."""
    return (Path(base) / FOLDER / name).exists()
