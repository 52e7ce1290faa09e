"""What lets commands run faster in tests, and changes nothing of what they make."""

from __future__ import annotations

import functools
import math
import os
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from sqlite3 import dbapi2
from typing import Any

import numpy as np
import pytest

from compress.tracking import run

_open_sender = run._sender
ROUNDS = 2
"""Timed calls of each model, and of each of its texts."""
TEXTS = 2
"""Texts that stand for all where latency is measured on them."""


def time_few_calls(patch: pytest.MonkeyPatch) -> None:
    """A third of the time of commands would go into timing models, and no test asks how fast one is."""
    from compress.predict import real_texts
    from evaluation.cost import latency

    patch.setattr(latency, "count_most_rounds", lambda repeats: min(repeats, ROUNDS))
    patch.setattr(latency, "ENOUGH", ROUNDS)
    patch.setattr(latency._Timer, "warm_up", lambda timer, calls: timer.run() if calls else None)
    patch.setattr(real_texts, "TIMED", TEXTS)


def do_not_wait_for_quiet(patch: pytest.MonkeyPatch) -> None:
    """`compress fit` times blocks until two rounds agree: for half a minute a length on a machine that runs tests."""
    from evaluation.cost import least

    patch.setattr(least, "PATIENCE", 0.5)


def check_files_in_onnxruntime_alone(patch: pytest.MonkeyPatch) -> None:
    """Compiling a file that was written takes OpenVINO as long as a short training. `tests/export` has it answer every
    kind of file; what commands print of it is the same line for all."""
    from compress.onnx import writer

    installed = writer.versions
    patch.setattr(writer, "versions", lambda: {**installed(), "openvino": None})


class JournalOnly:
    """Stands for a `tracking.sender.Sender`: what a run says stays in its journal, as if all of it had been sent."""

    run_id = None
    sent_records = sys.maxsize
    files_left = 0

    def flush(self, seconds: float) -> None:
        pass

    def close(self) -> None:
        pass


def send_to_store(wanted: bool) -> None:
    """Whether commands in this process send what they track. A tenth of the time of all tests would go into it, and few
    of them look at the store."""
    if wanted:
        remember_newest_schema()
        trust_artifact_paths()
    opened: Any = _open_sender if wanted else lambda *args, **options: JournalOnly()
    run._sender = opened


def is_sent_to_store() -> bool:
    """What `send_to_store` was given last."""
    return run._sender is _open_sender


@functools.cache
def remember_newest_schema() -> None:
    """MLflow imports all its migrations whenever a database is opened, to learn which one is the newest."""
    from mlflow.store.db import utils

    utils._get_latest_schema_revision = functools.cache(utils._get_latest_schema_revision)


@functools.cache
def trust_artifact_paths() -> None:
    """MLflow resolves the path of each file that it keeps eight times, in case somebody has put links there."""
    from mlflow.store.artifact import local_artifact_repo

    local_artifact_repo.validate_path_within_directory = lambda base_dir, constructed_path: constructed_path


def take_the_machine_for_quiet(patch: pytest.MonkeyPatch) -> None:
    """All times and ratios are known. Other tests run beside, and what no neighbour lets be known is not printed."""
    from evaluation.cost import latency

    patch.setattr(latency._Timer, "_clean", lambda self: np.ones((len(self._rounds), len(self._parts)), bool))
    patch.setattr(latency._Waits, "seconds", lambda self: 0.0)
    patch.setattr(latency, "WIDEST", math.inf)


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
