"""What a run writes down about itself: the records of its journal, and the names of the files beside it.

`FOLDER/tracking/journal.jsonl` is the run as it happened, one record a call; `state.json` says how much of it a store
has. The journal alone is enough to make the run again in an empty store.
"""

from __future__ import annotations

import getpass
import json
import os
import sys
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.errors import UserError, printable
from compress.storage.journal import Journal
from compress.storage.journal import read as read_journal
from compress.tracking.names import DATASET_NAME_LIMIT, DIGEST_LIMIT, SOURCE_LIMIT, TAG_LIMIT, redact, truncate_text

FOLDER = "tracking"
RUNNING, FINISHED, FAILED, KILLED = "RUNNING", "FINISHED", "FAILED", "KILLED"
Record = dict[str, Any]


def journal_path(folder: Path) -> Path:
    return folder / FOLDER / "journal.jsonl"


def state_path(folder: Path) -> Path:
    return folder / FOLDER / "state.json"


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def new_key() -> str:
    return uuid.uuid4().hex


def model_key(run: str, name: str, folder: str) -> str:
    """The key of a model of the run with the key `run`: the same when a resumed run logs the model once more."""
    return uuid.uuid5(uuid.UUID(run), f"{name}\n{folder}").hex


def start_record(
    experiment: str,
    name: str,
    tags: Mapping[str, str],
    parent: Mapping[str, str] | None,
    view: str | None,
    store: str,
) -> Record:
    """First record of a journal. `key` names the run wherever it is sent: two sends of one journal make one run."""
    return {
        "op": "start",
        "t": now_ms(),
        "key": new_key(),
        "experiment": experiment,
        "name": name,
        "tags": dict(tags),
        "parent": dict(parent) if parent else None,
        "view": view,
        "store": store,
    }


def resume_record(store: str) -> Record:
    """A later process goes on with the run."""
    return {"op": "resume", "t": now_ms(), "store": store}


def command_line() -> str:
    """The command of this process as a person types it, without secrets."""
    words = [Path(sys.argv[0]).name or "python", *sys.argv[1:]]
    return redact(printable(" ".join(words), TAG_LIMIT))


def user_name() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):
        return str(os.getuid()) if hasattr(os, "getuid") else "unknown"


@dataclass
class JournalContent:
    """What a journal says, read from its beginning."""

    records: list[Record]

    @property
    def start(self) -> Record:
        return self.records[0]

    @property
    def store(self) -> str:
        """Address of the store that the last process wrote to, without password."""
        return next(r["store"] for r in reversed(self.records) if "store" in r)

    @property
    def status(self) -> str:
        """FINISHED, FAILED or KILLED if the run was ended after its last start, else RUNNING."""
        for record in reversed(self.records):
            if record["op"] in ("start", "resume"):
                break
            if record["op"] == "finish":
                return str(record["status"])
        return RUNNING


def read(folder: Path) -> JournalContent:
    """The journal of a run's folder; UserError when there is none or it does not begin as one of ours."""
    path = journal_path(folder)
    if not path.is_file():
        raise UserError("no tracked run in this folder", where=str(folder), why=f"{FOLDER}/{path.name} does not exist")
    records, _ = read_journal(path)
    if not records or records[0].get("op") != "start":
        raise UserError(
            "the start of the journal is missing", where=str(path), why="its first record is not a run's start"
        )
    return JournalContent(records)


def has_journal(folder: Path) -> bool:
    """True when a run was begun here, even if its first record never reached the disk whole."""
    path = journal_path(folder)
    if not path.is_file():
        return False
    records, _ = read_journal(path)
    return bool(records) and records[0].get("op") == "start"


def open_journal(folder: Path) -> Journal:
    return Journal(journal_path(folder))


def dataset_record(name: str, digest: str, source: str, context: str) -> Record:
    """A data set of a run, cut to what the store takes."""
    return {
        "op": "dataset",
        "name": truncate_text(name, DATASET_NAME_LIMIT),
        "digest": digest[:DIGEST_LIMIT],
        "source": json.dumps({"uri": truncate_text(redact(source), SOURCE_LIMIT)}),
        "context": context,
    }
