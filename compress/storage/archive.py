"""Files packed into one zip archive, in memory: `atomic` writes it."""

from __future__ import annotations

import io
from collections.abc import Iterable
from zipfile import ZIP_DEFLATED, ZipFile


def pack(files: Iterable[tuple[str, bytes]]) -> bytes:
    """The archive of files by name, each read and compressed in its turn."""
    archive = io.BytesIO()
    with ZipFile(archive, "w", ZIP_DEFLATED) as packed:
        for name, content in files:
            packed.writestr(name, content)
    return archive.getvalue()
