"""SIGINT, SIGTERM and SIGHUP ask a run to stop at its next step boundary; asked again, it leaves at once.

The handler only sets a flag: nothing is saved, logged or locked inside it. The second signal is seen by a thread,
through a descriptor that the system's own handler writes to, so it is obeyed even while the main thread is deep in a
long computation. Leaving at once is safe because every file is written atomically.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any

from compress.errors import ExitCode

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A closing terminal sends its SIGHUP twice within milliseconds (kernel and shell), wrappers pass a Ctrl-C on that the
# process group got already: signals this close together are one request.
_SAME_REQUEST = 0.25
_LAST_WORDS = b"\nstopped immediately; the last checkpoint is kept\n"
_SHOW_CURSOR = b"\x1b[?25h"  # a progress display hides it, and nobody else will bring it back

_active: StopFlag | None = None

OUT_OF_TIME = "the time limit"
"""What a flag shows that is up by its clock alone."""


class StopFlag:
    """Context manager; `requested` is the name of the signal that asked to stop, or None.

    Handlers are installed in the main thread alone, put back on exit, and left as they are where the caller ignores a
    signal (nohup). Inside another StopFlag, the inner one shows what the outer one is told. Forked children, such as
    data workers, get the system's handlers back: they must die of SIGTERM, and leave Ctrl-C to their parent.
    """

    def __init__(self) -> None:
        self._requested: str | None = None
        self._deadline: float | None = None
        self._outer: StopFlag | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self._watcher: _Watcher | None = None

    @property
    def requested(self) -> str | None:
        late = self._deadline is not None and time.monotonic() >= self._deadline
        own = self._requested or (OUT_OF_TIME if late else None)
        return own or (self._outer.requested if self._outer is not None else None)

    @contextlib.contextmanager
    def until(self, moment: float | None) -> Iterator[None]:
        """Inside, the flag is also up from this moment of the monotonic clock on; None: of no moment."""
        before, self._deadline = self._deadline, moment
        try:
            yield
        finally:
            self._deadline = before

    def request(self, reason: str) -> None:
        """Ask to stop, as a signal does; the first reason stays."""
        if self._requested is None:
            self._requested = reason

    def __enter__(self) -> StopFlag:
        global _active
        if _active is not None:
            self._outer = _active
            return self
        if threading.current_thread() is not threading.main_thread():
            return self
        _active = self
        self._watcher = _Watcher()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active
        if _active is not self:
            return
        for number, handler in self._previous.items():
            # None: the handler was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self._watcher is not None:
            self._watcher.close()
        _active = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.request(signal.Signals(number).name)


class _Watcher:
    """A thread that counts signals as they arrive and ends the process at the second request."""

    def __init__(self) -> None:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._writing, False)
        self._before = signal.set_wakeup_fd(self._writing, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        signal.set_wakeup_fd(self._before)
        # No end of file to wait for: a forked child may hold the pipe's other end open.
        os.write(self._writing, b"\0")
        self._thread.join()
        os.close(self._writing)
        os.close(self._reading)

    def _watch(self) -> None:
        first: float | None = None
        while (received := os.read(self._reading, 1)) != b"\0":
            if received[0] not in SIGNALS:
                continue
            now = time.monotonic()
            if first is None:
                first = now
            elif now - first > _SAME_REQUEST:
                _leave()


def _leave() -> None:
    with contextlib.suppress(OSError):
        os.write(2, _LAST_WORDS + (_SHOW_CURSOR if os.isatty(2) else b""))
    os._exit(ExitCode.STOPPED)


# A signal that arrives in a child before its handlers are reset would be swallowed by ours, and written to the pipe of
# the parent: signals wait while a process is forked.
_fork = threading.local()


def _before_fork() -> None:
    if _active is not None:
        _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    mask = getattr(_fork, "mask", None)
    if mask is not None:
        _fork.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    global _active
    flag, _active = _active, None
    if flag is not None:
        signal.set_wakeup_fd(-1)
        for number in flag._previous:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
