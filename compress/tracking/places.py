"""Where a store's files lie on this machine, and the few things that only its sqlite database itself can tell."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from compress.errors import ExitCode, UserError
from compress.tracking.store import Store, open_client, require_made, short

ARTIFACTS = "artifacts"
BUSY_SECONDS = 20.0


def local_path(place: str) -> Path | None:
    """The path that an address of artifacts means on this machine; None for one on another."""
    if place.startswith("file:"):
        parts = urlsplit(place)
        return Path(url2pathname(parts.path)) if parts.netloc in ("", "localhost") else None
    return Path(place) if place.startswith("/") else None


def open_own_database(store: Store, command: str) -> Path:
    """The sqlite file of the store, opened once so that its tables are of this MLflow. UserError for other stores."""
    if store.database is None:
        server = "a server" if store.is_server else "a database server"
        raise UserError(
            f"`{command}` needs the database file and the folders beside it, but {store.shown} is {server}",
            where=store.chosen,
            do="run it on the machine that has these files, with --tracking-uri sqlite:///path/to/mlflow.db",
        )
    require_made(store)
    open_client(store)
    return store.database


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query answers, read only. UserError when the database does not."""
    try:
        with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)) as connection:
            return connection.execute(query).fetchall()
    except sqlite3.Error as error:
        raise _unanswered(database, error) from error


@contextmanager
def open_transaction(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection whose changes are made together when the block ends well, and not at all when it raises."""
    try:
        with closing(sqlite3.connect(database, timeout=BUSY_SECONDS, isolation_level=None)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:  # of some errors, a full disk among them, sqlite rolls back on its own
                    connection.execute("ROLLBACK")
                raise
    except sqlite3.Error as error:
        raise _unanswered(database, error) from error


def shrink(database: Path) -> None:
    """Give the room of deleted rows back to the disk, where no other process holds the database just now."""
    try:
        with closing(sqlite3.connect(database, timeout=1, isolation_level=None)) as connection:
            connection.execute("VACUUM")
    except sqlite3.Error:
        return  # it is only larger than it must be; the next time does it


def _unanswered(database: Path, error: sqlite3.Error) -> UserError:
    return UserError(
        "the store does not respond",
        where=str(database),
        why=short(error),
        do="stop other programs that write to it and try again",
        code=ExitCode.ENVIRONMENT,
    )
