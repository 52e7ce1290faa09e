"""Lines of a pipe: given as they come, together where more come at once, and never kept waiting for long."""

from __future__ import annotations

import io
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
from echoes import Echo

from compress.commands import predict
from compress.contracts import RunOptions
from compress.data.reading.pipe import lines_as_they_come
from compress.errors import UserError
from compress.predict.rows.answers import ModelRequest
from compress.predict.rows.inputs import EMBEDDED, PredictionInput
from compress.predict.rows.reading import read_rows

MODEL = ModelRequest(Path("m"))


@contextmanager
def pipe() -> Iterator[tuple[BinaryIO, int]]:
    """The end to read, and the descriptor to write to."""
    read, write = os.pipe()
    with os.fdopen(read, "rb") as stream:
        yield stream, write


class Script:
    """What happens whenever the reader looks whether there is more: bytes arrive, the pipe closes, or nothing comes."""

    def __init__(self, write: int, *events: bytes | None) -> None:
        self.write, self.events = write, list(events)
        self.asked: list[float | None] = []

    def ready(self, descriptor: int, seconds: float | None) -> bool:
        self.asked.append(seconds)
        event = self.events.pop(0)
        if event:
            os.write(self.write, event)
        elif event == b"":
            os.close(self.write)
        if event is None:  # nothing in time: what comes after the pause is there when it is waited for
            self.ready(descriptor, None)
            return False
        return True


def test_a_line_does_not_wait_for_others_that_do_not_come() -> None:
    with pipe() as (stream, write):
        script = Script(write, None, b"b\nc\n", None, b"", b"")
        os.write(write, b"a\n")
        found = lines_as_they_come(stream, 100, wait=0.05, ready=script.ready, clock=lambda: 0.0)
        assert list(found) == [b"a\n", None, b"b\n", b"c\n", None]
        assert script.asked[0] == 0.05


def test_the_time_of_a_line_counts_from_the_first_of_its_group() -> None:
    times = iter([0.0, 0.03, 0.06, 0.09])
    with pipe() as (stream, write):
        script = Script(write, b"b\n", b"c\n", None, b"")
        os.write(write, b"a\n")
        found = list(lines_as_they_come(stream, 100, wait=0.05, ready=script.ready, clock=lambda: next(times)))
    assert found == [b"a\n", b"b\n", b"c\n", None]
    assert script.asked[:3] == pytest.approx([0.02, 0.0, 0.0]), "of a line that comes later nothing is added"


def test_a_full_group_begins_a_new_count_and_needs_no_pause() -> None:
    with pipe() as (stream, write):
        script = Script(write)
        os.write(write, b"a\nb\nc\nd\n")
        os.close(write)
        assert list(lines_as_they_come(stream, 2, ready=script.ready)) == [b"a\n", b"b\n", b"c\n", b"d\n"]
        assert script.asked == []


def test_lines_that_arrive_in_parts_and_a_last_one_without_an_end() -> None:
    with pipe() as (stream, write):
        script = Script(write, b"st\nsec", b"ond\n\nthird", b"")
        os.write(write, b"fi\nr")
        found = list(lines_as_they_come(stream, 100, ready=script.ready))
    assert found == [b"fi\n", b"rst\n", b"second\n", b"\n", b"third"]


def test_a_line_without_an_end_is_given_in_pieces_above_the_limit() -> None:
    with pipe() as (stream, write):
        os.write(write, b"x" * 5000)
        os.close(write)
        assert len(next(lines_as_they_come(stream, 8, limit=1000)) or b"") > 1000


def test_a_stream_in_memory_never_pauses() -> None:
    assert list(lines_as_they_come(io.BytesIO(b"a\nb"), 8)) == [b"a\n", b"b"]


@pytest.mark.parametrize(("json", "answer"), [(False, b"one!\n"), (True, b'{"text": "one", "label": "one"}\n')])
def test_predict_answers_a_line_while_the_pipe_stays_open(
    json: bool, answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("compress.predict.fastest.open_predictor", partial(Echo, str))
    out_read, out_write = os.pipe()
    with pipe() as (stdin, write), os.fdopen(out_write, "w") as stdout, os.fdopen(out_read, "rb", 0) as answers:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        monkeypatch.setattr(sys, "stdout", stdout)
        options = RunOptions(quiet=True, json=json)
        worker = threading.Thread(target=predict.predict_texts, args=(MODEL, (), (), Path("-"), options), daemon=True)
        worker.start()
        os.write(write, b"one\n")
        there = select.select([answers], [], [], 30)[0]
        os.close(write)
        worker.join(30)
        assert there, "no answer before the pipe was closed"
        assert answers.read(1000) == answer


def test_the_line_of_a_pipe_that_is_too_long_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("compress.data.reading.text_files.LINE_LIMIT", 1000)
    monkeypatch.setattr("compress.data.reading.pipe.LINE_LIMIT", 1000)
    with pipe() as (stdin, write):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=stdin))
        os.write(write, b"fine\n" + b"x" * 5000)
        os.close(write)
        found = read_rows(Path("-"), EMBEDDED)
        assert next(found) == PredictionInput("fine")
        with pytest.raises(UserError, match="-:2: the line is too long"):
            list(found)
