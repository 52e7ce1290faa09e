"""The door for files that somebody else wrote: sizes bounded, header first, nothing ever unpickled or executed.

Every refusal is a `UserError` of one line that says what the file is and what to do; none suggests an unsafe switch.
"""

from __future__ import annotations

import os
from typing import Any

from compress.storage.foreign import decode, parse_json, read_bytes
from compress.storage.tensorfile import (
    MAX_TENSORS,
    load_safetensors,
    read_safetensors_header,
    require_finite,
)

__all__ = [
    "MAX_TENSORS",
    "load_safetensors",
    "parse_json",
    "read_json",
    "read_safetensors_header",
    "read_text",
    "require_finite",
]


def read_text(path: str | os.PathLike[str], limit: int = 1 << 20) -> str:
    """The UTF-8 text of a file of at most `limit` bytes, a byte order mark removed."""
    return decode(read_bytes(path, limit), os.fspath(path))


def read_json(path: str | os.PathLike[str], limit: int = 1 << 20, *, depth: int = 64) -> dict[str, Any]:
    """The JSON object in a file of at most `limit` bytes and `depth` levels; duplicate keys and NaN are refused."""
    return parse_json(read_bytes(path, limit), os.fspath(path), depth=depth)
