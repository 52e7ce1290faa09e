"""Progress of one piece of work: a live bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from compress.console.cells import format_cell

if TYPE_CHECKING:
    import rich.console
    import rich.progress

PLAIN_SECONDS = 5.0
"""Between two progress lines where there is no terminal."""
REDRAW_SECONDS = 0.25
"""Between two drawings of a bar."""


class Silent:
    """Progress that shows nothing."""

    def update(self, done: int, **figures: float | str) -> None:
        pass


class Rate:
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


class ProgressLines:
    """Progress without a terminal: a line at the start (after `delay` seconds), every few seconds, and at the end."""

    def __init__(self, say: Any, label: str, rate: Rate, delay: float) -> None:
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


def _progress_words(done: int, rate: Rate, figures: Mapping[str, float | str]) -> list[str]:
    total = rate.total
    words = [f"{done} {rate.unit}"] if total is None else [f"{done}/{total}", f"{100 * done / max(1, total):.0f}%"]
    for name, value in figures.items():
        words.append(f"{format_cell(value)} {name}" if name.endswith("/s") else f"{name} {format_cell(value)}")
    speed, left = rate.figures(done)
    if speed is not None:
        words.append(f"{_speed(speed)} {rate.unit}/s")
    if left is not None and total is not None and done < total:
        words.append(f"{format_clock(left)} left")
    return words


def _speed(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


class ProgressBar:
    """Progress on a terminal, which starts after `delay` seconds.

    Only `update` draws, never a thread: a thread would disturb what is being timed. outputs: whether stdout is the
    terminal too; if not, what is written there must not go through the bar.
    """

    def __init__(self, screen: rich.console.Console, label: str, rate: Rate, delay: float, outputs: bool) -> None:
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
            self.bar = _make_bar(self.screen, self.label, self.rate.total, self.outputs)
            _clear_line(self.screen)
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


def _make_bar(screen: rich.console.Console, label: str, total: int | None, outputs: bool) -> rich.progress.Progress:
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


def _clear_line(screen: rich.console.Console) -> None:
    """Where a bar around this one was drawn last, which is drawn anew below."""
    from rich.control import Control
    from rich.segment import ControlType

    screen.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))


def format_clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
