"""Where a store's files lie on this machine, and changes of its database that are made whole or not at all."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from compress.errors import ExitCode, UserError
from compress.tracking import places
from compress.tracking.places import local_path, open_own_database, open_transaction, rows, shrink
from compress.tracking.store import Store


@pytest.fixture
def database(tmp_path: Path) -> Path:
    path = tmp_path / "a b%20c#d?.db"
    connection = sqlite3.connect(path)
    with connection:
        connection.execute("CREATE TABLE runs (name TEXT UNIQUE)")
        connection.execute("INSERT INTO runs VALUES ('first')")
    connection.close()
    return path


def names(database: Path) -> list[str]:
    return [name for (name,) in rows(database, "SELECT name FROM runs ORDER BY name")]


@pytest.mark.parametrize("name", ["plain", "a b", "100%25", "a%20b", "a#b?c", "ünï", "a+b", "%2F"])
def test_an_address_means_the_folder_that_it_was_made_of(name: str) -> None:
    """Also where its name looks like an escape: decoded twice, a%20b would be the folder "a b" beside it."""
    path = Path("/store") / name
    assert local_path(path.as_uri()) == path
    assert local_path(f"file://localhost{quote(str(path))}") == path
    assert local_path(str(path)) == path


@pytest.mark.parametrize(
    "place", ["", "s3://bucket/a", "mlflow-artifacts:/0/a", "http://host/a", "relative/a", "file://server/share/a"]
)
def test_an_address_of_another_machine(place: str) -> None:
    assert local_path(place) is None


def test_changes_are_made_together_or_not_at_all(database: Path) -> None:
    with open_transaction(database) as connection:
        connection.execute("INSERT INTO runs VALUES ('second')")
    assert names(database) == ["first", "second"]

    def fail() -> None:
        with open_transaction(database) as connection:
            connection.execute("DELETE FROM runs")
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        fail()
    assert names(database) == ["first", "second"]


def test_the_reason_of_a_change_that_sqlite_took_back_is_told(database: Path) -> None:
    """As it does by itself when the disk is full. There is no transaction left that could be rolled back."""

    def fail() -> None:
        with open_transaction(database) as connection:
            connection.execute("INSERT INTO runs VALUES ('second')")
            connection.execute("INSERT OR ROLLBACK INTO runs VALUES ('first')")

    with pytest.raises(UserError, match="UNIQUE constraint failed") as error:
        fail()
    assert error.value.code == ExitCode.ENVIRONMENT
    assert names(database) == ["first"]


def test_a_database_that_another_program_holds(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(places, "BUSY_SECONDS", 0.0)
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(UserError, match=r"the store does not respond.*locked"), open_transaction(database):
            pytest.fail("the block must not begin")
        with pytest.raises(UserError, match="the store does not respond"):
            names(database)
    finally:
        other.execute("ROLLBACK")
        other.close()
    assert names(database) == ["first"]


def test_reading_changes_nothing_and_makes_no_file(tmp_path: Path, database: Path) -> None:
    with pytest.raises(UserError, match="readonly"):
        rows(database, "DELETE FROM runs")
    with pytest.raises(UserError, match="the store does not respond"):
        rows(tmp_path / "gone.db", "SELECT 1")
    assert not (tmp_path / "gone.db").exists()


def test_shrinking_frees_room_and_never_fails(database: Path) -> None:
    with open_transaction(database) as connection:
        connection.executemany("INSERT INTO runs VALUES (?)", [(f"{i}" * 500,) for i in range(200)])
    with open_transaction(database) as connection:
        connection.execute("DELETE FROM runs WHERE name <> 'first'")
    before = database.stat().st_size
    shrink(database)
    assert database.stat().st_size < before / 4
    assert names(database) == ["first"]
    database.write_bytes(b"no database at all" * 100)
    shrink(database)


@pytest.mark.parametrize(
    ("uri", "what"), [("http://host:5000", "is a server"), ("postgresql://me:pass@host/db", "is a database server")]
)
def test_a_store_without_a_file_of_its_own(uri: str, what: str) -> None:
    with pytest.raises(UserError, match=what) as error:
        open_own_database(Store(uri, "--tracking-uri"), "compress runs delete")
    assert "`compress runs delete` needs the database file" in error.value.line()
    assert "pass" not in error.value.line()
