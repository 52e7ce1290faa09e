"""What this process has said about stores that do not answer, so that several runs do not each say it again.

What runs leave behind is told at once for the first run of a store, as the process may be killed before it ends. What
later ones add is told once, with the one command that uploads all of it: when the command ends, or without one when the
last open run does.
"""

from __future__ import annotations

import os
import shlex
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from compress.errors import format_count
from compress.tracking.store import Store

MOST_FOLDERS = 3
"""In the line that uploads them; more are named by the folder that holds them all, where it is close above them."""

Warn = Callable[[str], None]


@dataclass
class _Said:
    """down: address of a store and what it does not accept → the number of that outage.  outages: so far.  slow: stores
    whose files did not arrive in time.  left: folder of a run → records, and records without their files, that have not
    arrived.  told: address of a store → the first of its runs that left something, which was told.  open: runs that
    have not ended.  commands: that report themselves when they end.
    """

    down: dict[tuple[str, str], int] = field(default_factory=dict)
    outages: int = 0
    slow: set[str] = field(default_factory=set)
    left: dict[Path, tuple[int, int]] = field(default_factory=dict)
    told: dict[str, Path] = field(default_factory=dict)
    open: int = 0
    commands: int = 0
    warn: Warn = lambda _: None


_lock = threading.Lock()
_said = _Said()


def begins(store: Store, what: str) -> bool:
    """The store does not accept `what`, metrics or files: whether that is new."""
    with _lock:
        new = (store.uri, what) not in _said.down
        if new:
            _said.outages += 1
            _said.down[store.uri, what] = _said.outages
        return new


def count() -> int:
    """Outages so far: what `ends` is told by whoever begins to send."""
    return _said.outages


def ends(store: Store, what: str, known: int) -> bool:
    """The store accepts `what`: whether it did not before. known: outages when the sending began; what another thread
    sent just before a later one does not end it."""
    with _lock:
        was = _said.down.get((store.uri, what), known + 1) <= known
        if was:
            del _said.down[store.uri, what]
        if what == "files":
            _said.slow.discard(store.uri)
        return was


def note_slow(store: Store) -> None:
    """Files of a run that ended did not arrive in time."""
    with _lock:
        _said.slow.add(store.uri)


def is_slow(store: Store) -> bool:
    """Whether files did not arrive in time, and none have arrived since."""
    return store.uri in _said.slow


def run_begins() -> None:
    """A run of this process is open."""
    with _lock:
        _said.open += 1


def run_ends(folder: Path, store: Store, records: int, files: int, warn: Warn) -> None:
    """A run has ended. records: that have not arrived.  files: records that have, without their files.  warn: takes
    the line that says so, now or when the command ends."""
    with _lock:
        _said.open = max(_said.open - 1, 0)
        _said.left.pop(folder, None)
        first = False
        if records or files:
            first = store.uri not in _said.told
            _said.told.setdefault(store.uri, folder)
            _said.left[folder] = (records, files)
            _said.warn = warn
        last = not _said.open and not _said.commands
    if first:
        warn(_left_line({folder: (records, files)}))
    if last:
        _report()


@contextmanager
def reported_once() -> Iterator[None]:
    """What the runs within leave behind is told at the end, in one line."""
    with _lock:
        _said.commands += 1
    try:
        yield
    finally:
        with _lock:
            _said.commands -= 1
            last = not _said.commands
        if last:
            _report()


def _report() -> None:
    with _lock:
        left, warn = dict(_said.left), _said.warn
        more = left.keys() - _said.told.values()
        _said.left.clear()
        _said.told.clear()
        _said.down.clear()  # the next command says it anew
    if more:
        warn(_left_line(left))


def _left_line(left: Mapping[Path, tuple[int, int]]) -> str:
    records, files = (sum(one) for one in zip(*left.values(), strict=True))
    runs = f" of {len(left)} runs" if len(left) > 1 else ""
    return f"tracking: {_describe(records, files, runs)} not uploaded yet; upload them with: {sync_command([*left])}"


def _describe(records: int, files: int, runs: str) -> str:
    """What has not arrived, with its verb."""
    if not files:
        return f"{format_count(records, 'record')}{runs} {'is' if records == 1 else 'are'}"
    if not records:
        return f"the files of {format_count(files, 'record')}{runs} are"
    return f"{format_count(records, 'record')} and the files of {files} more{runs} are"


def sync_command(folders: Sequence[Path]) -> str:
    """The command that uploads the runs of these folders, and those in them."""
    tops = sorted({one for one in folders if not any(other in one.parents for other in folders)})
    if len(tops) > MOST_FOLDERS:
        common = Path(os.path.commonpath(tops))
        if all(common in (one.parent, one.parent.parent) for one in tops):  # else it holds much that is none of them
            tops = [common]
    here = Path.cwd()
    shown = [one.relative_to(here) if one.is_relative_to(here) else one for one in tops]
    return " ".join(["compress sync", *(shlex.quote(str(one)) for one in shown)])


def forget() -> None:
    """As if nothing had been said, and no run were open."""
    global _said
    with _lock:
        _said = _Said()
