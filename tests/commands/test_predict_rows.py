"""Rows of a file are answered in chunks; they are counted first only where progress is shown."""

from __future__ import annotations

import gzip
import io
import json
import os
import sys
import tracemalloc
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compress.commands import predict
from compress.contracts import RunOptions
from compress.data.reading import text_files
from compress.errors import UserError, printable
from compress.predict.rows import reading, windows
from compress.predict.rows.inputs import EMBEDDED, BadRow, PredictionInput, Row
from compress.predict.rows.windows import divide
from compress.storage.lines import write_line


class Repeater:
    """Answers each row with its text."""

    label, columns = "predict", EMBEDDED

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def lines(self, rows: Sequence[PredictionInput], told: Any, *, as_json: bool) -> Iterator[str]:
        self.sizes.append(len(rows))
        return iter([row.text for row in rows])


def answered(rows: Path | int, options: RunOptions) -> list[int]:
    """Rows of each window."""
    answerer = Repeater()
    source = (PredictionInput(str(i)) for i in range(windows.AT_ONCE + 3))
    predict.write_answers(answerer, source, rows, options)
    return answerer.sizes


@pytest.mark.parametrize("options", [{"quiet": True}, {"json": True}])
def test_a_file_is_not_counted_where_no_progress_is_shown(
    options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Path] = []
    monkeypatch.setattr(predict, "_count", lambda file, _: counted.append(file))
    assert answered(tmp_path / "rows.txt", RunOptions(**options)) == [windows.AT_ONCE, 3]
    assert counted == []


def test_a_file_is_not_counted_between_answers_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(predict, "_count", lambda *_: pytest.fail("counted"))
    assert answered(tmp_path / "rows.txt", RunOptions()) == [windows.AT_ONCE, 3]


def test_the_rows_of_a_file_are_the_total_of_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Path] = []
    monkeypatch.setattr(predict, "_count", lambda file, _: counted.append(file))
    answered(tmp_path / "rows.txt", RunOptions())
    answered(5, RunOptions())
    assert counted == [tmp_path / "rows.txt"]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [("a.txt", "one\ntwo\nthree\n\n", 3), ("a.jsonl", '{"text": "one"}\n\n', 1), ("a.csv", "text\none\n", None)],
)
def test_lines_are_counted_as_they_are_read(name: str, content: str, rows: int | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert predict._count(tmp_path / name, EMBEDDED) == rows


def test_what_cannot_be_read_twice_is_not_counted(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.txt")
    assert predict._count(tmp_path / "pipe.txt", EMBEDDED) is None
    assert predict._count(Path("-"), EMBEDDED) is None


def test_a_line_without_end_is_refused_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LINE_LIMIT", 1 << 16)
    with pytest.raises(UserError, match="/dev/zero:1: the line is too long"):
        next(reading.read_rows(Path("/dev/zero"), EMBEDDED))


def sizes(rows: Iterable[Row | None], **how: Any) -> list[int]:
    """Rows of each window."""
    return [len(window) for window in divide(rows, **how)]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (gzip.compress(b"a fine film\n"), "this is gzip data; unpack it first (`gunzip`)"),
        ("a fine film\n".encode("utf-16"), "this is UTF-16 text; convert it: `iconv -f UTF-16 -t UTF-8`"),
    ],
)
@pytest.mark.parametrize("name", ["a.txt", "a.jsonl"])
def test_a_file_of_another_form_says_which(content: bytes, line: str, name: str, tmp_path: Path) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(UserError) as error:
        list(reading.read_rows(file, EMBEDDED))
    assert error.value.line() == f"{file}: {line}"


def test_rows_that_must_not_wait_are_answered_with_what_is_there() -> None:
    rows = [PredictionInput("a"), None, None, PredictionInput("b"), PredictionInput("c"), None]
    assert sizes(rows) == [1, 2]
    assert sizes(rows, stream=True) == [1, 2]


def test_a_file_is_answered_in_larger_windows_than_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "AT_ONCE", 2)
    monkeypatch.setattr(windows, "WINDOW", 5)
    rows = [PredictionInput("a")] * 12
    assert sizes(rows) == [2, 3, 5, 2]
    assert sizes(rows, stream=True) == [2] * 6


def test_windows_end_at_fixed_rows_whatever_comes_between(monkeypatch: pytest.MonkeyPatch) -> None:
    """What begins at row 5 is divided as in the whole: else its answers could differ in their last digits."""
    monkeypatch.setattr(windows, "AT_ONCE", 2)
    monkeypatch.setattr(windows, "WINDOW", 5)
    monkeypatch.setattr(windows, "MOST_CHARACTERS", 10)
    bad = BadRow("f", "line", 1, UserError("bad"))
    rows: list[Row] = [PredictionInput(text) for text in ["a"] * 6 + ["long text " * 2] + ["b"] * 6]
    rows[3:4] = [bad]
    rejected: list[BadRow] = []
    whole = list(divide(rows, reject=rejected.append))
    assert [len(window) for window in whole] == [2, 2, 2, 3, 3]
    assert rejected == [bad]
    assert list(divide(rows[5:10], first=5)) + list(divide(rows[10:], first=10)) == whole[2:]
    with pytest.raises(UserError, match="bad"):
        list(divide(rows))


def test_long_texts_are_held_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(windows, "MOST_CHARACTERS", 10)
    rows = [PredictionInput("question", "x"), PredictionInput("question", "context"), PredictionInput("a")]
    assert sizes(rows) == [2, 1]


def test_answers_leave_before_the_next_rows_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[str] = []
    out = io.StringIO()
    out.flush = lambda: events.append("flush")  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", out)

    def rows() -> Iterator[PredictionInput | None]:
        for text in ("a", "b"):
            events.append(f"read {text}")
            yield PredictionInput(text)
            yield None

    predict.write_answers(Repeater(), rows(), 2, RunOptions(quiet=True))
    assert events == ["read a", "flush", "read b", "flush"]
    assert out.getvalue() == "a\nb\n"


def test_a_word_of_many_megabytes_is_held_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 << 20
    path = tmp_path / "x.txt"
    path.write_text("x" * size + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
    tracemalloc.start()
    try:
        for row in reading.read_rows(path, EMBEDDED):
            assert isinstance(row, PredictionInput)
            write_line(sys.stdout, json.dumps({"text": row.text}, ensure_ascii=False))
            assert printable(row.text, 200).endswith("…")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        sys.stdout.close()
    assert peak < 4.5 * size
