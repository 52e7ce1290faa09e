"""Updates the absolute artifact paths in a store after its project was moved."""

from __future__ import annotations

import shlex
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from compress.errors import UserError
from compress.tracking.places import ARTIFACTS, local_path, open_own_database, open_transaction, rows
from compress.tracking.schema import backup
from compress.tracking.store import Store

# Table, column, and what else a row must fulfil.
_COLUMNS = (
    ("experiments", "artifact_location", ""),
    ("runs", "artifact_uri", ""),
    ("logged_models", "artifact_location", ""),
    ("model_versions", "source", ""),
    ("model_versions", "storage_location", ""),
    ("tags", "value", "key = 'compress.folder'"),
)


@dataclass(frozen=True)
class Move:
    """old, new: folders.  changes: `runs.artifact_uri` → how many of its addresses lead into `old`.

    missing: logged models whose files would not be found at the new place; elsewhere: addresses in other folders still.
    """

    old: Path
    new: Path
    changes: dict[str, int]
    missing: list[str]
    elsewhere: list[str]

    @property
    def count(self) -> int:
        return sum(self.changes.values())


def plan(store: Store, old: Path | None = None, new: Path | None = None) -> Move:
    """What `relocate` would change. old: where the project was, else found out from the addresses themselves.

    new: where it is now, else the folder that belongs to the store. Raises UserError when `old` cannot be told, or
    nothing leads there.
    """
    database = open_own_database(store, "compress runs relocate")
    if old is None:
        old, guessed = _infer(database)
        new = new or guessed
    here = database.parent.parent if database.parent.name == "mlruns" else database.parent
    old, new = Path(old).absolute(), Path(new or here).absolute()
    if old == new:
        raise UserError(
            "the old location is the new location",
            where=str(old),
            do="give the old and the new location of the project",
        )
    changes = {f"{table}.{column}": _count(database, table, column, more, old) for table, column, more in _COLUMNS}
    if not any(changes.values()):
        known = sorted({str(p) for p in foreign(database)})[:3]
        why = f"they point to {', '.join(known)}" if known else "all of them point to the store's folder"
        raise UserError("no artifact path of the store points there", where=str(old), why=why)
    missing, elsewhere = [], []
    for name, place in rows(database, "SELECT name, artifact_location FROM logged_models"):
        path = local_path(place or "")
        if path is not None and path.is_relative_to(old) and not (new / path.relative_to(old)).is_dir():
            missing.append(name)
    elsewhere = sorted({str(p) for p in foreign(database) if not p.is_relative_to(old)})
    return Move(old, new, {key: n for key, n in changes.items() if n}, missing, elsewhere)


def relocate(store: Store, move: Move) -> Path:
    """Change the addresses, all or none; returns the copy of the database that was made before."""
    database = open_own_database(store, "compress runs relocate")
    kept = backup(database, "relocate")
    with open_transaction(database) as connection:
        for table, column, more in _COLUMNS:
            for before, after in _forms(move.old, move.new):
                _replace(connection, table, column, more, before, after)
    return kept


def require_in_place(store: Store) -> None:
    """Raises UserError for a store that was moved or copied and still has the artifact paths of its old place: files
    would be written there, into a project that is gone, or into another one."""
    database = store.database
    if database is None or not database.is_file():
        return
    try:
        found = rows(database, "SELECT name, artifact_location FROM experiments")
    except UserError:  # whoever opens it says what is wrong
        return
    for name, place in found:
        path, own = local_path(place or ""), local_path(store.artifact_location(name) or "")
        if path is None or own is None or path.parts[-2:] != own.parts[-2:] or path.resolve() == own.resolve():
            continue
        uri = f" --tracking-uri {shlex.quote(store.shown)}" if store.chosen == "--tracking-uri" else ""
        raise UserError(
            "the store was moved or copied", where=store.shown, why=f"its artifact paths lead to {path.parent}",
            do=f"update them first: compress runs relocate{uri}",
        )  # fmt: skip


def _forms(old: Path, new: Path) -> list[tuple[str, str]]:
    """Both ways in which a store writes a folder."""
    return [(old.as_uri(), new.as_uri()), (str(old), str(new))]


def _where(column: str, more: str) -> str:
    """True for the folder itself and what lies in it; `/a/b` is not in `/a/bc`."""
    inside = f"({column} = :old OR substr({column}, 1, length(:old) + 1) = :old || '/')"
    return f"{inside} AND {more}" if more else inside


def _replace(connection: sqlite3.Connection, table: str, column: str, more: str, before: str, after: str) -> None:
    connection.execute(
        f"UPDATE {table} SET {column} = :new || substr({column}, length(:old) + 1) WHERE {_where(column, more)}",
        {"old": before, "new": after},
    )


def _count(database: Path, table: str, column: str, more: str, old: Path) -> int:
    found = rows(database, f"SELECT {column} FROM {table}" + (f" WHERE {more}" if more else ""))
    starts = [form for form, _ in _forms(old, old)]
    return sum(1 for (text,) in found if text and any(text == s or text.startswith(s + "/") for s in starts))


def foreign(database: Path) -> list[Path]:
    """Folders of artifacts on this machine that do not lie beside the database, by what the store says.

    Not that of the experiment 0, which MLflow makes by itself in the folder where it is first called.
    """
    query = "SELECT artifact_location FROM experiments WHERE experiment_id != 0"
    query += " UNION SELECT artifact_location FROM logged_models"
    found = [local_path(text or "") for (text,) in rows(database, query)]
    return [p for p in found if p is not None and not p.is_relative_to(database.parent)]


def _infer(database: Path) -> tuple[Path, Path]:
    """(old, new) from addresses whose end is found beside the store: `/old/mlruns/artifacts/toy` → `/old`, `/new`."""
    beside = database.parent / ARTIFACTS
    olds = set()
    for path in foreign(database):
        parts = path.parts
        ends = (i for i, part in enumerate(parts[:-1]) if part == ARTIFACTS)
        first = next((i for i in ends if (beside / Path(*parts[i + 1 :])).is_dir()), None)
        if first is not None:
            olds.add(Path(*parts[:first]))
    if len(olds) != 1:
        if not foreign(database):
            raise UserError(
                "nothing to change", where=str(database), why="every artifact path points to the store's folder"
            )
        if not olds:
            what, why = "the old location cannot be determined", "no artifact path matches a folder beside the store"
        else:
            what, why = "there are several old locations", ", ".join(sorted(map(str, olds)))
        raise UserError(what, where=str(database), why=why, do="specify it: compress runs relocate OLD [NEW]")
    old, new = olds.pop(), database.parent
    while old.name == new.name and old.parent != old and new.parent != new:
        old, new = old.parent, new.parent
    return old, new
