"""Progress of several jobs at once, one view for all."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from compress.console.progress import REDRAW_SECONDS
from compress.errors import printable

if TYPE_CHECKING:
    import rich.console

BOARD_SECONDS = 15.0
"""Between two lines of a job that runs, where there is no terminal."""


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


class LineBoard(Board):
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


class LiveBoard(Board):
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
