"""What lets commands run faster in tests, and changes nothing of what they make."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from sqlite3 import dbapi2
from typing import Any

import pytest


def count_few_rounds(repeats: int) -> int:
    """Of timed calls: a fifth of the time of commands goes there, and no test asks how fast one is."""
    return min(repeats, 5)


FEW_TEXTS = 4
"""Texts that stand for all where latency is measured on them. With 32, a third of the time of commands went there."""


def do_not_wait_for_quiet(patch: pytest.MonkeyPatch) -> None:
    """`compress fit` times blocks until two rounds agree: for half a minute a length on a machine that runs tests."""
    from compress.fit.cost import block_table

    patch.setattr(block_table, "PATIENCE", 0.5)


@contextmanager
def never_wait_for_the_disk() -> Iterator[None]:
    """A flush is for a power cut; what a killed process has written stays. Tests of the writer look at its calls."""
    connect = dbapi2.connect

    def connect_without_flushes(*args: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*args, **options)
        with suppress(dbapi2.Error):  # a file that is no database is told where it is read
            connection.execute("PRAGMA synchronous = OFF")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(dbapi2, "connect", connect_without_flushes)
        yield
