"""Results for machines: numbers that JSON has, and documents collected in place of stdout."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

document_sink: ContextVar[list[Any] | None] = ContextVar("document_sink", default=None)
"""Takes documents in place of stdout; None: they are printed."""


@contextmanager
def collect_documents() -> Iterator[list[Any]]:
    """A list that takes the documents of `Console.document` while the block runs, in place of stdout."""
    token = document_sink.set(documents := [])
    try:
        yield documents
    finally:
        document_sink.reset(token)


def finite(data: Any) -> Any:
    """`data` with the numbers that JSON cannot say as null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(item) for item in data]
    return data
