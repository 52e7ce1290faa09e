"""When Python looks for garbage in a process that is this program's alone."""

from __future__ import annotations

import atexit
import gc

SELDOM = (10_000, 10, 10)
"""Of `gc.set_threshold`. Nearly all that the libraries make at import stays until the end. By the thresholds of
Python, (700, 10, 10), it is looked through again and again."""


def collect_seldom() -> None:
    """Look for garbage less often, and not at the exit: a third of the processor time of a short command went into it.

    Only reference cycles are meant: all else is freed when nothing refers to it.
    """
    gc.set_threshold(*SELDOM)
    atexit.register(gc.freeze)  # Python looks through a million objects before it drops all of them; none is left to it
