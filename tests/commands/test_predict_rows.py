"""Rows of a file are answered in chunks; they are counted first only where progress is shown."""

from __future__ import annotations

import io
import json
import os
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from compress.commands import predict
from compress.commands.predict import PredictionInput
from compress.contracts import RunOptions
from compress.data.reading import text_files
from compress.errors import UserError, printable


def answered(rows: Path | int, options: RunOptions) -> list[int]:
    """Rows of each chunk."""
    sizes: list[int] = []
    source = (PredictionInput(str(i)) for i in range(predict.AT_ONCE + 3))
    predict._in_chunks(source, lambda chunk, told: sizes.append(len(chunk)), "predict", rows, options)
    return sizes


@pytest.mark.parametrize("options", [{"quiet": True}, {"json": True}])
def test_a_file_is_not_counted_where_no_progress_is_shown(
    options: dict[str, bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[Path] = []
    monkeypatch.setattr(predict, "_count", counted.append)
    assert answered(tmp_path / "rows.txt", RunOptions(**options)) == [predict.AT_ONCE, 3]
    assert counted == []


def test_a_file_is_not_counted_between_answers_on_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = io.StringIO()
    terminal.isatty = lambda: True  # type: ignore[method-assign]
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(predict, "_count", lambda file: pytest.fail("counted"))
    assert answered(tmp_path / "rows.txt", RunOptions()) == [predict.AT_ONCE, 3]


def test_the_rows_of_a_file_are_the_total_of_its_progress(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted: list[Path] = []
    monkeypatch.setattr(predict, "_count", counted.append)
    answered(tmp_path / "rows.txt", RunOptions())
    answered(5, RunOptions())
    assert counted == [tmp_path / "rows.txt"]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [("a.txt", "one\n\nthree\n", 3), ("a.jsonl", '{"text": "one"}\n\n', 1), ("a.csv", "text\none\n", None)],
)
def test_lines_are_counted_as_they_are_read(name: str, content: str, rows: int | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert predict._count(tmp_path / name) == rows


def test_what_cannot_be_read_twice_is_not_counted(tmp_path: Path) -> None:
    (tmp_path / "pipe.txt").mkdir()
    assert predict._count(tmp_path / "pipe.txt") is None
    assert predict._count(Path("-")) is None


def test_a_line_without_end_is_refused_at_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "LINE_LIMIT", 1 << 16)
    with pytest.raises(UserError, match="/dev/zero:1: the line is too long"):
        next(predict._lines(Path("/dev/zero")))


def test_rows_that_must_not_wait_are_answered_with_what_is_there() -> None:
    rows = [PredictionInput("a"), None, None, PredictionInput("b"), PredictionInput("c"), None]
    sizes: list[int] = []
    predict._in_chunks(iter(rows), lambda chunk, told: sizes.append(len(chunk)), "predict", 3, RunOptions(quiet=True))
    assert sizes == [1, 2]


@pytest.mark.parametrize(("source", "sizes"), [("rows.txt", [2, 5, 3]), ("-", [2, 2, 2, 2, 2])])
def test_a_file_is_answered_in_larger_chunks_than_a_stream(
    source: str, sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "AT_ONCE", 2)
    monkeypatch.setattr(predict, "WINDOW", 5)
    found: list[int] = []
    rows = iter([PredictionInput("a")] * 10)
    work = lambda chunk, told: found.append(len(chunk))  # noqa: E731
    predict._in_chunks(rows, work, "predict", Path(source), RunOptions(quiet=True))
    assert found == sizes


def test_long_texts_are_held_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(predict, "MOST_CHARACTERS", 10)
    rows = [PredictionInput("question", "x"), PredictionInput("question", "context"), PredictionInput("a")]
    assert [len(chunk) for chunk in predict._chunks(iter(rows), 100)] == [2, 1]


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

    work = lambda chunk, told: predict._write(chunk[0].text)  # noqa: E731
    predict._in_chunks(rows(), work, "predict", 2, RunOptions(quiet=True))
    assert events == ["read a", "flush", "read b", "flush"]
    assert out.getvalue() == "a\nb\n"


def test_a_word_of_many_megabytes_is_held_few_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = 4 << 20
    path = tmp_path / "x.txt"
    path.write_text("x" * size + "\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.FileIO(os.devnull, "w"), encoding="utf-8"))
    tracemalloc.start()
    try:
        for text in predict._lines(path):
            assert text is not None
            predict._write(json.dumps({"text": text}, ensure_ascii=False))
            assert printable(text, 200).endswith("…")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        sys.stdout.close()
    assert peak < 4.5 * size
