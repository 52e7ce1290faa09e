"""What a person sees: notes and progress on stderr, results on stdout. The only file that imports rich, and late.

On a terminal progress is a live bar; elsewhere (a log file, a pipe, TERM=dumb) it is one plain line every few seconds.
Text from outside (labels, file names, data) is shown as it is: no markup, control characters escaped.
"""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, TextIO

from compress.errors import printable

if TYPE_CHECKING:
    import rich.console
    import rich.progress

    from compress.contracts import Progress

PLAIN_SECONDS = 5.0
"""Between two progress lines where there is no terminal."""

REDRAW_SECONDS = 0.25
"""Between two drawings of a bar."""

BOARD_SECONDS = 15.0
"""Between two lines of a job that runs, where there is no terminal."""

SLOW_SECONDS = 3.0
"""What `Console.slow_progress` waits before it shows anything."""

WIDE = 10_000
"""Columns of a table that no terminal shows: nothing is cut or wrapped in a file or a pipe."""


_collected: ContextVar[list[Any] | None] = ContextVar("collected", default=None)


@contextmanager
def collect_documents() -> Iterator[list[Any]]:
    """A list that takes the documents of `Console.document` while the block runs, in place of stdout."""
    token = _collected.set(documents := [])
    try:
        yield documents
    finally:
        _collected.reset(token)


class Console:
    """Two streams and how much to say on them.

    quiet: no notes, no progress; warnings and results stay.  json: results are one JSON document, tables are left out.
    """

    def __init__(
        self, *, quiet: bool = False, json: bool = False, out: TextIO | None = None, err: TextIO | None = None
    ) -> None:
        self.quiet, self.json = quiet, json
        self._out, self._err = out, err

    # Looked up at each use: tests and shells replace the streams of a running process.
    @property
    def out(self) -> TextIO:
        return self._out or sys.stdout

    @property
    def err(self) -> TextIO:
        return self._err or sys.stderr

    def note(self, text: str) -> None:
        """One line of what is going on (stderr)."""
        if not self.quiet:
            self._say(text)

    def warn(self, text: str) -> None:
        """One line that must not be missed (stderr, also when quiet)."""
        self._say(f"warning: {text}")

    def listen(self) -> None:
        """From now on, what the parts log as warnings is shown as warnings here."""
        logger = logging.getLogger("compress")
        logger.handlers = [h for h in logger.handlers if not isinstance(h, _Shown)] + [_Shown(self)]

    def result(self, text: str) -> None:
        """Lines that the command was run for (stdout); left out under --json."""
        if not self.json:
            lines = "\n".join(printable(line) for line in text.split("\n"))
            print(lines, file=self.out, flush=True)

    def document(self, data: Any) -> None:
        """The result for machines: one JSON document on stdout; left out without --json."""
        if self.json:
            text = json.dumps(finite(data), indent=2, ensure_ascii=False, allow_nan=False, default=str)
            if (collected := _collected.get()) is not None:
                collected.append(json.loads(text))
                return
            print(text, file=self.out, flush=True)

    @property
    def width(self) -> int:
        """Columns of the terminal that results are printed on; of a file or pipe as many as they take."""
        screen = self._rich(self.out)
        return screen.width if screen.is_terminal else WIDE

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A result as a table (stdout); numbers stand right. Left out under --json."""
        if self.json:
            return
        from rich import box
        from rich.table import Table
        from rich.text import Text

        cells = [[_cell(value) for value in row] for row in rows]
        table = Table(title=Text(printable(title)) if title else None, box=box.SIMPLE_HEAD, title_justify="left")
        for index, name in enumerate(columns):
            numeric = bool(rows) and all(_is_figure(row[index]) for row in rows)
            table.add_column(Text(printable(name)), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        screen = self._rich(self.out)
        screen.width = self.width
        with screen.capture() as captured:
            screen.print(table)
        # rich pads every line to the table's width and frames it with empty ones, which only disturbs a diff.
        lines = (line.rstrip() for line in captured.get().split("\n"))
        print("\n".join(line for line in lines if line), file=self.out, flush=True)

    @contextmanager
    def progress(self, label: str, total: int | None, unit: str = "steps") -> Iterator[Progress]:
        """Progress over `total` units (None: unknown). The first `update` says where it starts (after a resume)."""
        with self._progress(label, total, unit, 0.0) as progress:
            yield progress

    @contextmanager
    def slow_progress(self, label: str, total: int | None, unit: str = "steps") -> Iterator[Progress]:
        """Progress from 0 that is shown once the work took `SLOW_SECONDS`, and not under --json."""
        if not self.shows_progress:
            yield _Silent()
            return
        with self._progress(label, total, unit, SLOW_SECONDS) as progress:
            progress.update(0)
            yield progress

    @contextmanager
    def _progress(self, label: str, total: int | None, unit: str, delay: float) -> Iterator[Progress]:
        rate = _Rate(total, unit)
        if self.quiet:
            yield _Silent()
        elif self.live:
            bar = _Bar(self._rich(self.err), printable(label), rate, delay, self.out.isatty())
            try:
                yield bar
            finally:
                bar.close()
        else:
            yield _Lines(self._say, label, rate, delay)

    @contextmanager
    def board(self, what: str, total: int) -> Iterator[Board]:
        """The state of `total` jobs that other processes do, one view for all. what: they are called, as `runs`."""
        if self.quiet:
            yield Board()
        elif self.live:
            board = _LiveBoard(self._rich(self.err), what, total, self.out.isatty())
            try:
                yield board
            finally:
                board.close()
        else:
            yield _LineBoard(self._say, total)

    @property
    def shows_progress(self) -> bool:
        """Whether `slow_progress` ever shows anything."""
        return not (self.quiet or self.json)

    @property
    def live(self) -> bool:
        """Whether stderr is a terminal that can redraw a line."""
        return self.err.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown", "")

    def _say(self, text: str) -> None:
        print(printable(text), file=self.err, flush=True)

    def _rich(self, stream: TextIO) -> rich.console.Console:
        from rich.console import Console as Screen

        return Screen(file=stream, markup=False, highlight=False, emoji=False, soft_wrap=False)


class _Shown(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.warn(record.getMessage())


class _Silent:
    def update(self, done: int, **figures: float | str) -> None:
        pass


class _Rate:
    """Units per second since the first report, and the time left."""

    def __init__(self, total: int | None, unit: str) -> None:
        self.total, self.unit, self.first, self.began = total, unit, 0, 0.0

    def start(self, done: int) -> None:
        self.first, self.began = done, time.monotonic()

    def figures(self, done: int) -> tuple[float | None, float | None]:
        """(units per second, seconds left), None while unknown."""
        steps, seconds = done - self.first, time.monotonic() - self.began
        if steps <= 0 or seconds <= 0:
            return None, None
        rate = steps / seconds
        return rate, None if self.total is None else max(0.0, (self.total - done) / rate)


class _Lines:
    """Progress without a terminal: a line at the start (after `delay` seconds), every few seconds, and at the end."""

    def __init__(self, say: Any, label: str, rate: _Rate, delay: float) -> None:
        self.say, self.label, self.rate = say, label, rate
        self.next = time.monotonic() + delay
        self.started = False
        self.said: int | None = None

    def update(self, done: int, **figures: float | str) -> None:
        if done == self.said:
            return
        now = time.monotonic()
        last = self.rate.total is not None and done >= self.rate.total
        if not self.started:
            self.rate.start(done)
            self.started = True
        if now < self.next and not (last and self.said is not None):
            return
        self.next, self.said = now + PLAIN_SECONDS, done
        self.say(" ".join([self.label, *_progress_words(done, self.rate, figures)]))


def _progress_words(done: int, rate: _Rate, figures: Mapping[str, float | str]) -> list[str]:
    total = rate.total
    words = [f"{done} {rate.unit}"] if total is None else [f"{done}/{total}", f"{100 * done / max(1, total):.0f}%"]
    for name, value in figures.items():
        words.append(f"{_cell(value)} {name}" if name.endswith("/s") else f"{name} {_cell(value)}")
    speed, left = rate.figures(done)
    if speed is not None:
        words.append(f"{_speed(speed)} {rate.unit}/s")
    if left is not None and total is not None and done < total:
        words.append(f"{_clock(left)} left")
    return words


def _speed(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


class _Bar:
    """Progress on a terminal, which starts after `delay` seconds.

    Only `update` draws, never a thread: a thread would disturb what is being timed. outputs: whether stdout is the
    terminal too; if not, what is written there must not go through the bar.
    """

    def __init__(self, screen: rich.console.Console, label: str, rate: _Rate, delay: float, outputs: bool) -> None:
        self.screen, self.label, self.rate, self.outputs = screen, label, rate, outputs
        self.next = time.monotonic() + delay
        self.started = False
        self.latest: tuple[int, Mapping[str, float | str]] = (0, {})
        self.bar: rich.progress.Progress | None = None

    def update(self, done: int, **figures: float | str) -> None:
        if not self.started:
            self.rate.start(done)
            self.started = True
        self.latest, now = (done, figures), time.monotonic()
        if now < self.next:
            return
        self.next = now + REDRAW_SECONDS
        if self.bar is None:
            self.bar = _bar(self.screen, self.label, self.rate.total, self.outputs)
            self.bar.start()
        self._draw(self.bar)

    def close(self) -> None:
        """Draw the last update, and leave the terminal as it was."""
        if self.bar is not None:
            self._draw(self.bar)
            self.bar.stop()

    def _draw(self, bar: rich.progress.Progress) -> None:
        done, figures = self.latest
        words = " ".join(_progress_words(done, self.rate, figures))
        bar.update(bar.task_ids[0], completed=done, words=words, refresh=True)


def _bar(screen: rich.console.Console, label: str, total: int | None, outputs: bool) -> rich.progress.Progress:
    from rich.progress import BarColumn, Progress, TextColumn

    # TextColumn fills its format with the task's fields and, with markup off, shows foreign text as it is.
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.fields[words]}", markup=False),
    )
    bar = Progress(*columns, console=screen, auto_refresh=False, redirect_stdout=outputs)
    bar.add_task(label, total=total, words="")
    return bar


# --- several jobs at once ---------------------------------------------------------------------------------------


class Board:
    """Jobs that run elsewhere: what each says of itself. This one shows nothing."""

    def begin(self, name: str) -> None:
        """A job has started."""

    def say(self, name: str, text: str) -> None:
        """The newest line of a job that runs; called often."""

    def end(self, name: str, how: str) -> None:
        """A job has ended. how: done, failed or stopped."""

    def draw(self) -> None:
        """Show what is new, where it is time."""


class _LineBoard(Board):
    """Without a terminal: a line when a job starts and ends, and every BOARD_SECONDS the newest line of each."""

    def __init__(self, say: Any, total: int) -> None:
        self.tell, self.total, self.ended = say, total, 0
        self.texts: dict[str, str] = {}
        self.said: dict[str, str] = {}
        self.next = time.monotonic() + BOARD_SECONDS

    def begin(self, name: str) -> None:
        self.texts[name] = ""
        self.tell(f"{name}: started")

    def say(self, name: str, text: str) -> None:
        self.texts[name] = text

    def end(self, name: str, how: str) -> None:
        self.texts.pop(name, None)
        self.ended += 1
        self.tell(f"{name}: {how}, {self.ended} of {self.total} ended")

    def draw(self) -> None:
        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + BOARD_SECONDS
        for name, text in self.texts.items():
            if text and text != self.said.get(name):
                self.said[name] = text
                self.tell(f"{name}: {text}")


class _LiveBoard(Board):
    """On a terminal: a line for each job that runs, redrawn; what ended is printed above. Only `draw` draws, no thread.

    outputs: whether stdout is the terminal too.
    """

    def __init__(self, screen: rich.console.Console, what: str, total: int, outputs: bool) -> None:
        from rich.live import Live

        self.what, self.total, self.ended = what, total, 0
        self.texts: dict[str, str] = {}
        self.next = 0.0
        self.live = Live(console=screen, auto_refresh=False, transient=True, redirect_stdout=outputs)
        self.live.start()

    def begin(self, name: str) -> None:
        self.texts[name] = "started"
        self.next = 0.0

    def say(self, name: str, text: str) -> None:
        if text:
            self.texts[name] = text

    def end(self, name: str, how: str) -> None:
        from rich.text import Text

        self.texts.pop(name, None)
        self.ended += 1
        self.next = 0.0
        self.live.console.print(Text(printable(f"{name}: {how}")))

    def draw(self) -> None:
        from rich.table import Table
        from rich.text import Text

        if time.monotonic() < self.next:
            return
        self.next = time.monotonic() + REDRAW_SECONDS
        grid = Table.grid(padding=(0, 2))
        grid.add_column(no_wrap=True)
        grid.add_column(no_wrap=True, overflow="ellipsis")
        grid.add_row(Text(self.what), Text(f"{self.ended} of {self.total} ended, {len(self.texts)} running"))
        for name, text in self.texts.items():
            grid.add_row(Text(printable(name)), Text(printable(text)))
        self.live.update(grid, refresh=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        self.live.stop()


def _cell(value: object) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 10_000 else f"{value:,.0f}"
    if isinstance(value, int):
        return f"{value:,}"
    return printable(str(value))


def _is_figure(value: object) -> bool:
    """A number, or text that starts like one (`91.2 ± 0.4`, `3.1×`)."""
    if value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        return True
    text = str(value).lstrip("+-−")
    return not text or text[:1].isdigit() or text == "–"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def finite(data: Any) -> Any:
    """`data` with the numbers that JSON cannot say as null."""
    if isinstance(data, float):
        return data if math.isfinite(data) else None
    if isinstance(data, Mapping):
        return {str(key): finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(item) for item in data]
    return data


# --- libraries kept off the terminal ----------------------------------------------------------------------------


@contextmanager
def silence_output() -> Iterator[None]:
    """Without anybody's warnings and log lines below ERROR, for the whole process: for imports and single calls."""
    level = logging.root.manager.disable
    logging.disable(max(level, logging.WARNING))
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logging.disable(level)
