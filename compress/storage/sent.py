"""Copies of files that were sent to this machine (`parcels`), found by the path that they have where they come from.

Whatever resolves a path asks here, most of it in commands that nothing was sent to: so this imports nothing heavy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

_copies: dict[str, str] = {}
"""Absolute path of what is not on this machine → its copy."""
_names: dict[str, str] = {}
"""Copy → path as it was named."""


def use_copies(copies: Mapping[str, str]) -> None:
    """From now on this process finds these: path as it was named → copy."""
    _copies.clear()
    _copies.update({os.path.abspath(path): copy for path, copy in copies.items()})
    _names.clear()
    _names.update({copy: str(Path(path)) for path, copy in copies.items()})


def find_copy(path: Path) -> Path:
    """`path`; where nothing is there, its copy, if it was sent to this machine."""
    if not _copies or path.exists():
        return path
    return Path(_copies.get(os.path.abspath(path), path))


def find_name(path: str) -> str:
    """How the command named what `find_copy` found, as records and rejected rows repeat it; any other path as it is."""
    return _names.get(path, path)
