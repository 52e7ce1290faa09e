"""Checks a store's schema version; backs up and upgrades a database that an older MLflow wrote.

MLflow itself changes the tables of an old sqlite store when it opens it, without a copy; so this comes before.
"""

from __future__ import annotations

import logging
import os
import re
import sqlite3
from contextlib import closing
from datetime import datetime
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from compress.errors import ExitCode, UserError
from compress.storage.database import copy_content, copy_database

log = logging.getLogger("compress.tracking")

BACKUPS = "backups"
_SAID = re.compile(r"^(revision|down_revision)\b[^=\n]*=(.*)$", re.MULTILINE)


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


def migrate(database: Path) -> Path | None:
    """Bring the tables of an older MLflow up to date; returns the copy made before, None where there was nothing to do.

    Call it under the store's lock, before MLflow opens the file. When the change fails, the database is as it was.
    Raises UserError for a store that a newer MLflow wrote, and when the change fails.
    """
    found = schema_version(database)
    if found is None:
        return None
    from mlflow.store.db import utils

    if found == utils._get_latest_schema_revision():
        return None
    _require_older(found, database)
    kept = backup(database, f"schema-{found}")
    from sqlalchemy import create_engine

    engine = create_engine(f"sqlite:///{database}")
    try:
        utils._upgrade_db(engine)
    except Exception as error:
        engine.dispose()
        copy_content(kept, database)
        raise UserError(
            "the store of an older MLflow cannot be upgraded",
            where=str(database),
            why=str(error).splitlines()[0],
            do=f"it is unchanged; a copy is {kept}",
            code=ExitCode.ENVIRONMENT,
        ) from error
    finally:
        engine.dispose()
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
    from alembic.script import ScriptDirectory
    from alembic.util import CommandError
    from mlflow.store.db import utils

    scripts = ScriptDirectory.from_config(utils._get_alembic_config(db_url=""))
    try:
        scripts.get_revision(found)
    except CommandError:
        import mlflow

        raise UserError(
            "the store was written by a newer MLflow",
            where=str(database),
            why=f"its schema version is {found}, which MLflow {mlflow.__version__} does not support",
            do="pip install --upgrade mlflow, or name another store with --tracking-uri",
            code=ExitCode.ENVIRONMENT,
        ) from None
