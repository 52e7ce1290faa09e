"""The two streams of a command: notes and progress on stderr, results on stdout."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, TextIO

from compress.console.board import Board, LineBoard, LiveBoard
from compress.console.cells import format_cell, is_figure
from compress.console.documents import document_sink, finite
from compress.console.progress import ProgressBar, ProgressLines, Rate, Silent
from compress.errors import printable

if TYPE_CHECKING:
    import rich.console

    from compress.contracts import Progress

SLOW_SECONDS = 3.0
"""What `Console.slow_progress` waits before it shows anything."""
WIDE = 10_000
"""Columns of a table that no terminal shows: nothing is cut or wrapped in a file or a pipe."""


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
            if (documents := document_sink.get()) is not None:
                documents.append(json.loads(text))
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

        cells = [[format_cell(value) for value in row] for row in rows]
        table = Table(box=box.SIMPLE_HEAD)
        for index, name in enumerate(columns):
            numeric = bool(rows) and all(is_figure(row[index]) for row in rows)
            table.add_column(Text(printable(name)), justify="right" if numeric else "left", overflow="fold")
        for row in cells:
            table.add_row(*(Text(cell) for cell in row))
        screen = self._rich(self.out)
        screen.width = self.width
        with screen.capture() as captured:
            if title:  # the title of a rich table is cut to lines of the table's width
                screen.print(Text(printable(title)), soft_wrap=True)
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
            yield Silent()
            return
        with self._progress(label, total, unit, SLOW_SECONDS) as progress:
            progress.update(0)
            yield progress

    @contextmanager
    def _progress(self, label: str, total: int | None, unit: str, delay: float) -> Iterator[Progress]:
        rate = Rate(total, unit)
        if self.quiet:
            yield Silent()
        elif self.live:
            bar = ProgressBar(self._rich(self.err), printable(label), rate, delay, self.out.isatty())
            try:
                yield bar
            finally:
                bar.close()
        else:
            yield ProgressLines(self._say, label, rate, delay)

    @contextmanager
    def board(self, what: str, total: int) -> Iterator[Board]:
        """The state of `total` jobs that other processes do, one view for all. what: they are called, as `runs`."""
        if self.quiet:
            yield Board()
        elif self.live:
            board = LiveBoard(self._rich(self.err), what, total, self.out.isatty())
            try:
                yield board
            finally:
                board.close()
        else:
            yield LineBoard(self._say, total)

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


@contextmanager
def watch_slow_work(label: str, total: int | None, unit: str = "steps") -> Iterator[Progress]:
    """`slow_progress` of the console that listens, for work deep below a command; without one, nothing is shown."""
    consoles = [h.console for h in logging.getLogger("compress").handlers if isinstance(h, _Shown)]
    with consoles[-1].slow_progress(label, total, unit) if consoles else nullcontext(Silent()) as progress:
        yield progress


class _Shown(logging.Handler):
    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self.console = console

    def emit(self, record: logging.LogRecord) -> None:
        self.console.warn(record.getMessage())
