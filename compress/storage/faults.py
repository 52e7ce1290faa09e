"""Fault points: named places inside every durable step where a test may kill, fail or delay the process.

A step declares its points when its module is imported and passes through them as it works:

    _AFTER_FSYNC = faults.point("file.after_fsync")
    ...
    faults.fault(_AFTER_FSYNC)

They do nothing unless the environment says `COMPRESS_FAULT="name:nth:action"`: at the nth time the point is passed,
`kill` sends SIGKILL to this process, `raise` raises `InjectedFault`, `enospc` and `eio` raise that OSError, and
`sleep=S` waits S seconds. A new durable step without a point is a step that no test can interrupt.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from compress.errors import UserError, did_you_mean

VARIABLE = "COMPRESS_FAULT"
_ACTIONS = ("kill", "raise", "enospc", "eio", "sleep")

POINTS: dict[str, str] = {}
"""Every declared point and the module that declared it."""


class InjectedFault(RuntimeError):  # noqa: N818 - named after what it stands for
    """What the action `raise` raises: it stands for a bug, so no code may catch it as an expected failure."""


@dataclass
class _Armed:
    spec: str
    name: str
    nth: int
    action: str
    seconds: float = 0.0
    hits: int = 0


_lock = threading.Lock()
_armed: _Armed | None = None
_record: list[tuple[str, int]] | None = None


def point(name: str) -> str:
    """Declare a fault point at import; returns the name, so that the call site cannot misspell it later.

    Raises ValueError when another module declared the same name: a test could not tell the two apart.
    """
    module = sys._getframe(1).f_globals.get("__name__", "?")
    if POINTS.setdefault(name, module) != module:
        raise ValueError(f"fault point {name!r} is declared by both {POINTS[name]} and {module}")
    return name


def points(prefix: str = "") -> list[str]:
    """The declared points whose name starts with `prefix`, sorted; those of modules not imported are not known."""
    return sorted(name for name in POINTS if name.startswith(prefix))


def fault(name: str) -> None:
    """Pass the point `name`. Costs one look into the environment unless a test has armed it."""
    if _record is not None:
        _note(name)
    spec = os.environ.get(VARIABLE)
    if not spec:
        return
    if name not in POINTS:
        raise KeyError(f"fault point {name!r} was passed but never declared")
    with _lock:
        armed = _arm(spec)
        if armed.name != name:
            return
        armed.hits += 1
        due = armed.hits == armed.nth
    if due:
        _fire(armed)


@contextmanager
def arm_fault(name: str, action: str, nth: int = 1) -> Iterator[None]:
    """Arm one point inside this process for the length of a block; the count of hits starts at zero."""
    global _armed
    if name not in POINTS:
        raise KeyError(f"no fault point {name!r}; {did_you_mean(name, POINTS)}")
    before = os.environ.get(VARIABLE)
    os.environ[VARIABLE], _armed = f"{name}:{nth}:{action}", None
    try:
        yield
    finally:
        _armed = None
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before


@contextmanager
def record_points() -> Iterator[list[tuple[str, int]]]:
    """The (name, nth) of every point passed inside the block, in order: what a test then kills at, one by one."""
    global _record
    hits: list[tuple[str, int]] = []
    _record = hits
    try:
        yield hits
    finally:
        _record = None


def _note(name: str) -> None:
    with _lock:
        if _record is not None:
            _record.append((name, 1 + sum(n == name for n, _ in _record)))


def _arm(spec: str) -> _Armed:
    global _armed
    if _armed is None or _armed.spec != spec:
        _armed = _parse(spec)
    return _armed


def _parse(spec: str) -> _Armed:
    name, _, rest = spec.partition(":")
    nth, _, action = rest.partition(":")
    action, _, seconds = action.partition("=")
    try:
        parsed = _Armed(spec, name, int(nth), action, float(seconds or 0))
    except ValueError:
        parsed = None
    if parsed is None or parsed.nth < 1 or action not in _ACTIONS:
        raise UserError(
            f"'{spec}' is not a fault",
            where=VARIABLE,
            why=f"expected name:nth:action with nth from 1 and action one of {', '.join(_ACTIONS)} (sleep=SECONDS)",
        )
    return parsed


def _fire(armed: _Armed) -> None:
    # Straight to the descriptor: after SIGKILL nothing buffered would be seen, and a test wants to see that it fired.
    os.write(2, f"fault: {armed.name} hit {armed.nth}: {armed.action}\n".encode())
    match armed.action:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raise":
            raise InjectedFault(armed.name)
        case "enospc":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        case "eio":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        case "sleep":
            time.sleep(armed.seconds)
