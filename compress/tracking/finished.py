"""Which experiments gained a finished run in this process: their first page is renewed when the command is done."""

from __future__ import annotations

from compress.tracking.store import Store

_experiments: dict[tuple[Store, str], None] = {}


def remember(store: Store, experiment: str) -> None:
    """A run of this experiment has ended in the store."""
    _experiments[store, experiment] = None


def has_any() -> bool:
    """Whether there is one that `take` has not returned."""
    return bool(_experiments)


def take() -> list[tuple[Store, str]]:
    """(store, experiment) of each, once: a second call returns what came since."""
    found = list(_experiments)
    for one in found:
        _experiments.pop(one, None)
    return found
