"""What this process has said about stores that do not answer, so that several runs do not each say it again."""

from __future__ import annotations

import threading

from compress.tracking.store import Store

_lock = threading.Lock()
_down: set[tuple[str, str]] = set()
_slow: set[str] = set()


def begins(store: Store, what: str) -> bool:
    """The store does not accept `what`, metrics or files: whether that is new."""
    with _lock:
        new = (store.uri, what) not in _down
        _down.add((store.uri, what))
        return new


def ends(store: Store, what: str) -> bool:
    """The store accepts `what`: whether it did not before."""
    with _lock:
        was = (store.uri, what) in _down
        _down.discard((store.uri, what))
        if what == "files":
            _slow.discard(store.uri)
        return was


def note_slow(store: Store) -> None:
    """Files of a run that ended did not arrive in time."""
    with _lock:
        _slow.add(store.uri)


def is_slow(store: Store) -> bool:
    """Whether files did not arrive in time, and none have arrived since."""
    return store.uri in _slow


def forget() -> None:
    """As if nothing had been said."""
    with _lock:
        _down.clear()
        _slow.clear()
