"""How much of a journal a store has: `state.json` beside the journal."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

from compress.storage.atomic import write_json
from compress.tracking.records import state_path

VERSION = 1


@dataclass
class SendState:
    """store: its address without password.  sent: records of the journal that arrived or were refused for good.

    models: key of the journal → id in the store.  linked: the parent's run id, once the run hangs below it.
    files: numbers of the records, below `sent`, whose files have not arrived.
    """

    store: str
    sent: int = 0
    run_id: str | None = None
    experiment_id: str | None = None
    models: dict[str, str] = field(default_factory=dict)
    linked: str | None = None
    refused: int = 0
    files: list[int] = field(default_factory=list)

    @classmethod
    def load(cls, path: Path, store: str) -> SendState:
        """The state in `path` if it speaks of this store, else a fresh one (a lost state only costs a comparison)."""
        found = read_state(path)
        return found if found is not None and found.store == store else cls(store)

    def save(self, path: Path) -> None:
        write_json(path, {"version": VERSION, **dataclasses.asdict(self)})


def not_beyond(path: Path, records: int) -> None:
    """A power cut can take the end of a journal after it was sent; what is written then must not count as sent."""
    state = read_state(path)
    if state is not None and state.sent > records:
        state.sent = records
        state.files = [number for number in state.files if number < records]
        state.save(path)


def read_state(path: Path) -> SendState | None:
    """The state written in `path`; None when there is none that can be understood."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("version") != VERSION:
            return None
        return SendState(**raw)
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def read_stored_run_id(folder: Path) -> str | None:
    """The id that the store gave the run of `folder`; None where nothing was tracked, or nothing arrived yet."""
    state = read_state(state_path(folder))
    return None if state is None else state.run_id
