"""SIGINT, SIGTERM and SIGHUP ask a run to stop at its next step boundary; a second signal ends the process at once.

The handler only sets a flag: nothing is saved, logged or locked inside it. The second signal is seen by a thread,
through a descriptor that the system's own handler writes to, so it is obeyed even while the main thread is deep in a
long computation, waits for a server, or writes a checkpoint. It ends the child processes too. Ending at once is safe
because every file is written atomically. The exit code is 128 plus the second signal's number, as in a shell.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from compress.errors import Stopped

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

# A closing terminal sends its SIGHUP twice within milliseconds (kernel and shell), wrappers pass a Ctrl-C on that the
# process group got already: what arrives in these seconds after the first signal is the same request.
_SAME_REQUEST = 0.25
_PASSED_ON = 1.0  # torchrun does so, and may itself wait for a processor first
_TORCHRUN = "TORCHELASTIC_RUN_ID"
_SHOW_CURSOR = "\x1b[?25h"  # a progress display hides it, and nobody else will bring it back

_active: StopFlag | None = None
_watcher: _Watcher | None = None

_continuation: str | None = None

OUT_OF_TIME = "the time limit"
"""What a flag shows that is up by its clock alone."""


def watch() -> None:
    """From now to the end of the process a second signal ends it at once; what the first one does stays as it is.

    For a program's own process. Where it is not called, a StopFlag watches as long as it is entered.
    """
    global _watcher
    if _watcher is None and threading.current_thread() is threading.main_thread():
        _watcher = _Watcher()
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody else's, or ignored
            signal.signal(signal.SIGINT, _interrupt)


@contextlib.contextmanager
def continued_by(command: str) -> Iterator[None]:
    """Inside, the last words name the command that continues what is being done: the outermost block's."""
    global _continuation
    before, _continuation = _continuation, _continuation or command
    try:
        yield
    finally:
        _continuation = before


def _interrupt(number: int, frame: FrameType | None) -> None:
    """What Python does at a SIGINT, but once: a second one is the watcher's, and must not race with it."""
    if _watcher is None or not _watcher.asked:
        if _watcher is not None:
            _watcher.asked = True
        signal.default_int_handler(number, frame)


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

    def check(self) -> None:
        """Raises Stopped where the flag is up."""
        if (asked := self.requested) is not None:
            raise Stopped(f"stopped by {asked}")

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
        global _active, _watcher
        if _active is not None:
            self._outer = _active
            return self
        if threading.current_thread() is not threading.main_thread():
            return self
        _active = self
        if _watcher is None:
            self._watcher = _watcher = _Watcher()
        for number in SIGNALS:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        global _active, _watcher
        if _active is not self:
            return
        for number, handler in self._previous.items():
            # None: the handler was not installed from Python and cannot be put back from here.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        self._previous.clear()
        if self._watcher is not None:
            self._watcher.close()
            self._watcher = _watcher = None
        _active = None

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if _watcher is not None:
            _watcher.asked = True
        self.request(signal.Signals(number).name)


class _Watcher:
    """A thread that counts signals as they arrive and ends the process at the second request.

    armed: set once the next signal is the second request.  asked: whether a handler of ours has seen the first.
    """

    def __init__(self) -> None:
        self.asked = False
        self.armed = threading.Event()
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
        with contextlib.suppress(_Closed):
            first = self._receive(None)
            until = time.monotonic() + (_PASSED_ON if _TORCHRUN in os.environ else _SAME_REQUEST)
            while self._receive(until) is not None:
                pass
            self.armed.set()
            _announce(first)
            _leave(self._receive(None))

    def _receive(self, until: float | None) -> signal.Signals | None:
        """The next signal; None when none has arrived by this moment of the monotonic clock. Raises _Closed."""
        while _ready(self._reading, select.POLLIN, until):
            number = os.read(self._reading, 1)[0]
            if number == 0:
                raise _Closed
            if number in SIGNALS:
                return signal.Signals(number)
        return None


def _ready(descriptor: int, event: int, until: float | None) -> bool:
    """Whether it can be read or written by this moment of the monotonic clock; None: wait for it."""
    waiting = select.poll()  # unlike select(), of any number of open files
    waiting.register(descriptor, event)
    return bool(waiting.poll(None if until is None else max(until - time.monotonic(), 0.0) * 1000))


class _Closed(Exception):  # noqa: N818 - the end of a thread, not an error
    """Nobody watches any more."""


def _announce(first: signal.Signals | None) -> None:
    """What the first signal does, where it takes longer than a moment."""
    if first is not None and _active is not None:
        again = "press Ctrl-C again" if first == signal.SIGINT else f"send {first.name} again"
        _write(f"{first.name}: stopping after the current step; {again} to end at once")


def _leave(second: signal.Signals | None) -> NoReturn:
    assert second is not None
    _kill_children()
    kept = f"; the last checkpoint is kept; continue with: {_continuation}" if _continuation else ""
    _write(f"ended at once by a second signal{kept}")
    os._exit(128 + second)


def _write(line: str) -> None:
    """To stderr, past the interpreter's buffers and their locks; not at all where nobody reads and it would wait."""
    if os.environ.get("RANK", "0") != "0" and _TORCHRUN in os.environ:
        return  # the first process says the same
    with contextlib.suppress(OSError, ValueError):
        if _ready(2, select.POLLOUT, time.monotonic()):
            os.write(2, f"\n{line}\n{_SHOW_CURSOR if os.isatty(2) else ''}".encode(errors="backslashreplace"))


def _kill_children() -> None:
    """SIGKILL to every process below this one, so that none is left without a parent."""
    if not sys.platform.startswith("linux"):
        return
    below: dict[int, list[int]] = {}
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):  # it ended meanwhile
            parent = int(entry.read_bytes().rpartition(b")")[2].split()[1])  # the name before it may hold anything
            below.setdefault(parent, []).append(int(entry.parent.name))
    waiting = [os.getpid()]
    while waiting:
        for child in below.get(waiting.pop(), ()):
            waiting.append(child)
            with contextlib.suppress(OSError):
                os.kill(child, signal.SIGKILL)


# A signal that arrives in a child before its handlers are reset would be swallowed by ours, and written to the pipe of
# the parent: signals wait while a process is forked.
_fork = threading.local()


def _before_fork() -> None:
    if _watcher is not None:
        _fork.mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def _after_fork() -> None:
    mask = getattr(_fork, "mask", None)
    if mask is not None:
        _fork.mask = None
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _after_fork_in_child() -> None:
    global _active, _watcher
    if _watcher is not None:
        signal.set_wakeup_fd(-1)  # the pipe is the parent's
        _watcher = None
    flag, _active = _active, None
    if flag is not None:
        for number in flag._previous:
            signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else signal.SIG_DFL)
    _after_fork()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork_in_child)
