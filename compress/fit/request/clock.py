"""The time that a fit has, and the signals that stop it."""

from __future__ import annotations

import time

from compress.storage.signals import StopFlag

RESERVE = 0.2
"""Share of the time that is kept for measuring the result."""


class Clock:
    """Begins when it is made. seconds: the time limit; None: there is none."""

    def __init__(self, stop: StopFlag, seconds: float | None) -> None:
        self.stop, self.seconds = stop, seconds
        self.begun = time.monotonic()

    def check(self) -> None:
        """Raises Stopped where a signal asked for it."""
        self.stop.check()

    @property
    def deadline(self) -> float | None:
        """By the monotonic clock, when measuring the result must begin; None: there is no limit."""
        return None if self.seconds is None else self.begun + (1 - RESERVE) * self.seconds

    def late(self, last: float) -> bool:
        """Whether another plan, which takes as many seconds as the last one, would exceed the time limit."""
        return self.deadline is not None and time.monotonic() + last > self.deadline
