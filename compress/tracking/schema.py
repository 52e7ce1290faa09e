"""Makes the database of a new store, and backs up and upgrades one that an older MLflow wrote.

MLflow makes and changes the tables of an sqlite store in place, in hundreds of statements of which each is kept at
once: a process that is killed among them leaves a file that no MLflow opens again. So this comes before MLflow. Tables
are made and changed in another file, which takes the place of the store's when it is whole.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from compress.errors import ExitCode, UserError
from compress.storage import temporary
from compress.storage.cache import cache_folder, keep_folder
from compress.storage.database import BUSY_SECONDS, copy_content, copy_database, write_database

if TYPE_CHECKING:
    from sqlalchemy.engine import Engine

log = logging.getLogger("compress.tracking")

BACKUPS = "backups"
EMPTY = "empty-stores"
"""Of the cache folder: the database of an empty store, by version of MLflow."""
_FILE = "mlflow.db"
_FEW = 3  # of them
_HELD = ("runs", "registered_models", "logged_models", "trace_info", "datasets")
"""Tables that hold what somebody logged. A store with none of it, and with one experiment at most, is empty."""
_SAID = re.compile(r"^(revision|down_revision)\b[^=\n]*=(.*)$", re.MULTILINE)


def prepare(database: Path) -> None:
    """Make the database of a store that is missing, or was never finished; bring an older one up to date.

    Call it under the store's lock, before MLflow opens the file. Raises UserError for a store that a newer MLflow
    wrote, when an upgrade fails (then the store is unchanged) and when the disk refuses the new file.
    """
    if not database.exists() or (database.is_file() and database.stat().st_size == 0):
        _make(database)
        return
    found = schema_version(database)
    if found is not None and found == newest_version():
        return
    if _is_half_made(database, found):
        kept = backup(database, "repair")
        log.warning(
            "%s was never finished, since a process died while making it, and holds no runs; a new one replaces it; "
            "backup: %s", database, kept,
        )  # fmt: skip
        _make(database)
    elif found is not None:
        migrate(database, found)


def _make(database: Path) -> None:
    """An empty store of the installed MLflow, whole or not there."""
    write_database(database, _empty_store())


def _empty_store() -> bytes:
    """The file of an empty store; made once per version of MLflow and kept in the cache: it takes a second."""
    from mlflow.version import VERSION

    try:
        kept = keep_folder(cache_folder() / EMPTY, f"mlflow-{VERSION}", _create_tables, _FEW)
        return (kept / _FILE).read_bytes()
    except (UserError, OSError):  # a cache that is full, or that this user may not write
        with tempfile.TemporaryDirectory() as folder:
            _create_tables(Path(folder))
            return (Path(folder) / _FILE).read_bytes()


def _create_tables(folder: Path) -> None:
    from mlflow.store.db import utils

    with _engine(folder / _FILE) as engine:
        utils._initialize_tables(engine)


@contextmanager
def _engine(database: Path) -> Iterator[Engine]:
    """A connection of MLflow's kind, which holds the file no longer than the block."""
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{database}")
    try:
        yield engine
    finally:
        engine.dispose()


def _is_half_made(database: Path, found: str | None) -> bool:
    """Whether these are an MLflow's tables, not all of them or of an old version, and nobody has logged anything.
    found: their version, which is not the newest; None where the file says none."""
    if found is not None and not _is_known(found):
        return False
    try:
        with closing(sqlite3.connect(database, timeout=BUSY_SECONDS)) as connection:
            names = {str(row[0]) for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if names and not names & {"experiments", "alembic_version"}:
                return False
            most = {**dict.fromkeys(_HELD, 0), "experiments": 1}
            rows = {
                name: connection.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in most.keys() & names
            }
    except sqlite3.Error:
        return False  # MLflow's own words tell what is wrong with it
    return all(count <= most[name] for name, count in rows.items())


def backup(database: Path, before: str) -> Path:
    """A whole copy of the database in `backups/` beside it; before: what is about to be done to it."""
    folder = database.parent / BACKUPS
    stamp = datetime.now().strftime("%Y-%m-%d-%H%M%S")
    path = folder / f"{database.stem}-{stamp}-before-{before}.db"
    number = 1
    while path.exists():
        number += 1
        path = folder / f"{database.stem}-{stamp}-{number}-before-{before}.db"
    copy_database(database, path)
    return path


def migrate(database: Path, found: str) -> Path | None:
    """Bring the tables of an older MLflow up to date; returns the copy made before, None where there was nothing to do.
    found: their version.

    Call it under the store's lock, before MLflow opens the file. When the change fails or the process dies, the
    database is as it was.
    Raises UserError for a store that a newer MLflow wrote, and when the change fails.
    """
    from mlflow.store.db import utils

    if found == utils._get_latest_schema_revision():
        return None
    _require_older(found, database)
    kept = backup(database, f"schema-{found}")
    with temporary.hold_writer_lock(database.parent):
        upgraded = temporary.make_name_beside(database, temporary.NEW)
        try:
            copy_content(kept, upgraded)
            with _engine(upgraded) as engine:
                utils._upgrade_db(engine)
            copy_content(upgraded, database)  # in one transaction
        except Exception as error:
            raise UserError(
                "the store of an older MLflow cannot be upgraded",
                where=str(database),
                why=str(error).splitlines()[0],
                do=f"it is unchanged; a copy is {kept}",
                code=ExitCode.ENVIRONMENT,
            ) from error
        finally:
            temporary.discard(upgraded)
    log.warning("%s was written by an older MLflow and has been upgraded; backup: %s", database, kept)
    return kept


def schema_version(database: Path) -> str | None:
    """The version of the tables as the database itself says it; None for a new file, and for one that says nothing
    (then MLflow's own words tell what is wrong with it)."""
    if not os.path.isfile(database) or database.stat().st_size == 0:
        return None
    try:
        with closing(sqlite3.connect(f"{database.absolute().as_uri()}?mode=ro", uri=True, timeout=20)) as connection:
            rows = connection.execute("SELECT version_num FROM alembic_version").fetchall()
    except sqlite3.Error:
        return None
    return str(rows[0][0]) if len(rows) == 1 else None


@cache
def newest_version() -> str | None:
    """The version of the tables that the installed MLflow writes, read from its scripts: to import it takes a second.

    None where the scripts do not lie where they used to.
    """
    found = find_spec("mlflow")
    if found is None or found.origin is None:
        return None
    made: set[str] = set()
    before: set[str] = set()
    for script in (Path(found.origin).parent / "store" / "db_migrations" / "versions").glob("*.py"):
        said = dict(_SAID.findall(script.read_text(encoding="utf-8")))
        made.update(re.findall(r"\w+", said.get("revision", "")))
        before.update(re.findall(r"\w+", said.get("down_revision", "")))
    last = made - before
    return last.pop() if len(last) == 1 else None


def _require_older(found: str, database: Path) -> None:
    if not _is_known(found):
        from mlflow.version import VERSION

        raise UserError(
            "the store was written by a newer MLflow",
            where=str(database),
            why=f"its schema version is {found}, which MLflow {VERSION} does not support",
            do="pip install --upgrade mlflow, or name another store with --tracking-uri",
            code=ExitCode.ENVIRONMENT,
        )


def _is_known(revision: str) -> bool:
    """Whether the installed MLflow has the script of this version of the tables."""
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError
    from mlflow.store.db import utils

    scripts = ScriptDirectory.from_config(utils._get_alembic_config(db_url=""))
    try:
        return scripts.get_revision(revision) is not None
    except CommandError:
        return False
