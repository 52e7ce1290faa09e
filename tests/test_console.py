"""What reaches which stream, in a terminal, in a pipe and for machines."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
import time
from collections.abc import Sequence

import pytest

from compress.console import Console
from compress.console.board import BOARD_SECONDS
from compress.console.progress import PLAIN_SECONDS, format_clock
from compress.errors import columns, list_some, printable


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    """`time.monotonic` that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", clock)
    return clock


def made(**how: bool) -> tuple[Console, io.StringIO, io.StringIO]:
    out, err = io.StringIO(), io.StringIO()
    return Console(out=out, err=err, **how), out, err


def test_notes_go_to_stderr_and_results_to_stdout() -> None:
    console, out, err = made()
    console.note("working")
    console.warn("careful")
    console.result("line one\nline two")
    assert err.getvalue() == "working\nwarning: careful\n"
    assert out.getvalue() == "line one\nline two\n"


def test_quiet_leaves_warnings_and_results() -> None:
    console, out, err = made(quiet=True)
    console.note("working")
    console.warn("careful")
    console.result("done")
    with console.progress("train", 3) as progress:
        progress.update(3)
    assert (err.getvalue(), out.getvalue()) == ("warning: careful\n", "done\n")


def test_json_is_the_only_thing_on_stdout() -> None:
    console, out, _ = made(json=True)
    console.result("done")
    console.table("t", ["a"], [[1]])
    console.document({"a": float("nan"), "b": (1.5, {"c": float("-inf")}), "path": io, "é": "模型"})
    data = json.loads(out.getvalue())
    assert data["a"] is None
    assert data["b"] == [1.5, {"c": None}]
    assert data["é"] == "模型"


def test_a_document_is_left_out_for_people() -> None:
    console, out, _ = made()
    console.document({"a": 1})
    assert out.getvalue() == ""


def test_a_table_in_a_pipe_is_whole_and_numbers_stand_right() -> None:
    console, out, _ = made()
    console.table("models", ["name", "params"], [["x" * 200, 1_234_567], ["模型", 12], ["[red]b[/red]", None]])
    title, *lines = out.getvalue().split("\n")
    assert title.strip() == "models"
    head, rule, long, chinese, markup, *_ = lines
    assert head.split() == ["name", "params"]
    assert set(rule.strip()) == {"─"}
    assert "x" * 200 in long
    assert long.endswith("1,234,567")
    assert "[red]b[/red]" in markup, "foreign text is not markup"
    # Two columns of the terminal for each CJK letter: the numbers still end in one column.
    assert chinese.endswith(" 12")
    assert len(long) == len(chinese) + 2
    assert all(line == line.rstrip() for line in lines)


def test_a_title_longer_than_its_table_is_one_line() -> None:
    console, out, _ = made()
    console.table("sentence embeddings, mean of the tokens", ["a"], [[1]])
    assert out.getvalue().startswith("sentence embeddings, mean of the tokens\n")


def test_a_table_escapes_what_drives_terminals() -> None:
    console, out, _ = made()
    console.table("", ["a\x1b[2J"], [["x\x1b]0;evil\x07y\nz"]])
    assert "\x1b" not in out.getvalue()
    assert "x\\x1b]0;evil\\x07y\\nz" in out.getvalue()


def test_an_empty_table_has_its_head() -> None:
    console, out, _ = made()
    console.table("", ["a", "b"], [])
    assert out.getvalue().split()[:2] == ["a", "b"]


def test_colours_are_off_in_a_pipe_and_by_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    console, out, _ = made()
    console.table("t", ["a"], [[1]])
    assert "\x1b" not in out.getvalue()
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    terminal = Terminal()
    Console(out=terminal).table("t", ["a"], [[1]])
    assert "\x1b[3" not in terminal.getvalue(), "no colour"


# --- progress ---------------------------------------------------------------------------------------------------


def test_without_a_terminal_a_line_every_few_seconds(clock: Clock) -> None:
    console, _, err = made()
    with console.progress("train", 100) as progress:
        for step in range(101):
            progress.update(step, loss=1 / (step + 1), stage="a")
            clock.now += 0.2
    lines = err.getvalue().splitlines()
    assert lines[0] == "train 0/100 0% loss 1 stage a"
    assert lines[1] == "train 25/100 25% loss 0.03846 stage a 5 steps/s 0:15 left"
    assert lines[-1] == "train 100/100 100% loss 0.009901 stage a 5 steps/s"
    assert len(lines) == 5


def test_the_rate_does_not_count_what_was_done_before_a_resume(clock: Clock) -> None:
    console, _, err = made()
    with console.progress("train", 2000) as progress:
        progress.update(1000)
        clock.now += 10
        progress.update(1100)
    assert err.getvalue().splitlines() == ["train 1000/2000 50%", "train 1100/2000 55% 10 steps/s 1:30 left"]


def test_an_unknown_total_shows_no_time_left(clock: Clock) -> None:
    console, _, err = made()
    with console.progress("read", None, "rows") as progress:
        progress.update(0)
        clock.now += 10
        progress.update(50, text="é\x1b")
    assert err.getvalue().splitlines() == ["read 0 rows", "read 50 rows text é\\x1b 5 rows/s"]


def test_a_figure_that_is_a_rate_has_its_unit(clock: Clock) -> None:
    console, _, err = made()
    with console.progress("train", 10) as progress:
        progress.update(0)
        clock.now += 5
        progress.update(5, loss=0.5, **{"tokens/s": 12_345.6})
    assert err.getvalue().splitlines()[-1] == "train 5/10 50% loss 0.5 12,346 tokens/s 1 steps/s 0:05 left"


def test_slow_progress_is_silent_for_three_seconds(clock: Clock) -> None:
    console, out, err = made()
    with console.slow_progress("predict", 4000, "rows") as progress:
        clock.now += 2.9
        progress.update(4000)
    assert err.getvalue() == ""
    with console.slow_progress("predict", 8000, "rows") as progress:
        for done in (1000, 2000, 3000, 8000):
            clock.now += 2
            progress.update(done)
    assert err.getvalue().splitlines() == [
        "predict 2000/8000 25% 500 rows/s 0:12 left",
        "predict 8000/8000 100% 1,000 rows/s",
    ]
    assert out.getvalue() == ""


@pytest.mark.parametrize("how", [{"quiet": True}, {"json": True}])
def test_slow_progress_is_silenced(how: dict[str, bool], clock: Clock) -> None:
    console, out, err = made(**how)
    with console.slow_progress("predict", None, "rows") as progress:
        clock.now += 60
        progress.update(10)
    assert (out.getvalue(), err.getvalue()) == ("", "")


def test_slow_progress_on_a_terminal_begins_late(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = Console(out=io.StringIO(), err=terminal)
    with console.slow_progress("predict", 10, "rows") as progress:
        clock.now += 2
        progress.update(5)
        assert terminal.getvalue() == ""
        clock.now += 2
        progress.update(6)
        progress.update(10)
    assert "10/10 100%" in terminal.getvalue(), "the last update is drawn, however soon it came"


def test_a_bar_within_a_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = Console(out=io.StringIO(), err=terminal)
    with console.progress("train", 10) as outer:
        outer.update(1)
        with console.slow_progress("validation", 4, "batches") as inner:
            clock.now += 5
            inner.update(2)
        clock.now += 5
        outer.update(10)
    assert "validation" in terminal.getvalue()
    assert "2/4 50%" in terminal.getvalue()
    assert "10/10 100%" in terminal.getvalue()
    assert not re.search("train[^\r\n]*validation", terminal.getvalue()), "beside each other, they would wrap"


def test_a_bar_takes_nothing_from_a_piped_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with Console().progress("predict", 10) as progress:
        progress.update(0)
        print("an answer")
        progress.update(10)
    assert pipe.getvalue() == "an answer\n"
    assert "an answer" not in terminal.getvalue()


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0:00"), (75, "1:15"), (3661, "1:01:01")])
def test_clock(seconds: float, text: str) -> None:
    assert format_clock(seconds) == text


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    console = Console(err=terminal)
    assert console.live
    with console.progress("train [x]", 10) as progress:
        progress.update(0, loss=2.0)
        progress.update(10, loss=1.0)
    assert "train [x]" in terminal.getvalue()
    assert "10/10 100% loss 1" in terminal.getvalue()


@pytest.mark.parametrize("kind", ["dumb", "unknown", ""])
def test_a_dumb_terminal_gets_lines(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", kind)
    assert not Console(err=Terminal()).live


def test_an_error_inside_progress_comes_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    with pytest.raises(KeyError), Console(err=Terminal()).progress("x", 1):
        raise KeyError("k")


def test_updates_are_written_every_few_seconds_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0, 0.01)
    monkeypatch.setattr("compress.console.progress.time.monotonic", lambda: next(clock))
    console, _, err = made()
    with console.progress("train", 10**9) as progress:
        for step in range(10_000):
            progress.update(step, loss=1.0)
    seconds = next(clock)
    assert 2 < len(err.getvalue().splitlines()) <= 2 + seconds / PLAIN_SECONDS


# --- East Asian text: a character fills two columns -------------------------------------------------------------

WIDE_ROWS = [["短", 1.5, "好评"], ["北京大学 model", 12.25, "a"], ["e\u0301tude（全角）", None, "差评，很长的一句话"]]


@pytest.mark.parametrize("width", [None, 34])
def test_columns_of_chinese_text_stand_under_each_other(width: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if width is None:
        console, out, _ = made()
    else:
        out = Terminal()
        console = Console(out=out)
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setenv("TERM", "xterm")
    console.table("", ["模型", "分数", "例子"], WIDE_ROWS)
    shown = re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue())
    lines = shown.rstrip("\n").split("\n")
    assert all(columns(line) <= (width or 200) for line in lines)
    starts = {columns(line[: line.index(word)]) for line in lines for word in ("例子", "好评", "差评") if word in line}
    assert len(starts) == 1, out.getvalue()
    assert "…" not in shown
    assert sum(line.count(c) for line in lines for c in "差评，很长的一句话") == 10


def test_width_is_what_the_table_counts_by() -> None:
    from rich.cells import cell_len

    for text in ("模型", "ａｂ", "ﾊﾝ", "한국", "e\u0301", "plain", "「括号」", "🙂", "\U00020000"):
        assert columns(text) == cell_len(text), text


@pytest.mark.parametrize("limit", range(1, 12))
def test_text_is_cut_by_columns(limit: int) -> None:
    text = "中文ab中e\u0301文"
    cut = printable(text, limit)
    assert columns(cut) <= limit
    assert cut == text if columns(text) <= limit else cut.endswith("…")
    assert columns(cut) >= min(limit - 1, columns(text))


def test_an_ideographic_space_keeps_its_width() -> None:
    assert printable("中\u3000文") == "中  文"


def test_jobs_without_a_terminal_are_lines_now_and_then(clock: Clock) -> None:
    console, _, err = made()
    with console.board("runs", 2) as board:
        board.begin("seed-0")
        board.say("seed-0", "distill 1/9")
        board.draw()
        clock.now += BOARD_SECONDS
        board.draw()
        clock.now += BOARD_SECONDS
        board.draw()
        board.end("seed-0", "failed")
    assert err.getvalue().splitlines() == ["seed-0: started", "seed-0: distill 1/9", "seed-0: failed, 1 of 2 ended"]
    console, _, err = made(quiet=True)
    with console.board("runs", 2) as board:
        board.begin("seed-0")
        board.end("seed-0", "done")
    assert err.getvalue() == ""


def test_jobs_on_a_terminal_are_one_view(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setenv("TERM", "xterm")
    err = Terminal()
    with Console(out=io.StringIO(), err=err).board("runs", 2) as board:
        board.begin("seed-0")
        board.begin("seed-1")
        board.say("seed-0", "distill [1/9]")
        board.draw()
        board.end("seed-0", "done")
        clock.now += 1
        board.draw()
    shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", err.getvalue())
    assert "0 of 2 ended, 2 running" in shown
    assert "distill [1/9]" in shown, "foreign text is shown as it is"
    assert "seed-0: done" in shown
    assert "1 of 2 ended, 1 running" in shown


@pytest.mark.parametrize(
    ("names", "shown"),
    [([], ""), (["a", "b"], "a, b"), (["a", "b", "c"], "a, b and 1 more"), (range(1_002), "0, 1 and 1,000 more")],
)
def test_a_long_list_says_how_many_are_left_out(names: Sequence[object], shown: str) -> None:
    assert list_some(names, 2) == shown
