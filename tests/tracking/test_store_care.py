"""Deleting, collecting and relocating: what goes is told first, what is needed stays, an old store is copied first."""

from __future__ import annotations

import json
import logging
import shutil
import sqlite3
from pathlib import Path

import pytest
from forked_scripts import Ended, ForkedScripts
from toy_runs import log_toy_runs
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.errors import UserError
from compress.storage.trees import remove_tree
from compress.tracking import Store, collecting, deleting, relocating, schema, sync
from compress.tracking.download import download_model
from compress.tracking.listing import list_runs
from compress.tracking.records import state_path
from compress.tracking.state import read_state

TEACHER, STUDENT = "teacher-12-layers", "student-6-layers"


@pytest.fixture
def project(tmp_path: Path, store: Store) -> Store:
    """A store with a teacher and a student, each with a model."""
    log_toy_runs(tmp_path / "runs", store, "toy", rows=2)
    return store


def _call(*words: object) -> int:
    return main([str(word) for word in words])


def _names(store: Store, *, deleted: bool = False) -> set[str]:
    return {row.name for row in list_runs(store, deleted=deleted)}


# --- deleting -----------------------------------------------------------------------------------------------------


def test_delete_tells_takes_the_children_and_asks(
    opened: Opener, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    above = opened("above")
    below = opened("below", parent=above.parent)
    opened("lowest", parent=below.parent).finish(seconds=120)
    below.finish(seconds=120)
    above.finish(seconds=120)
    opened("another").finish(seconds=120)
    assert _call("runs", "delete", "above", "--tracking-uri", store.uri) == 3
    said = capsys.readouterr()
    assert [line for line in ("above", "  below", "  lowest") if line in said.out] == ["above", "  below", "  lowest"]
    assert "error: delete 3 runs?: confirmation needs a terminal; add --yes" in said.err
    assert _names(store) == {"above", "below", "lowest", "another"}
    assert _call("runs", "delete", "above", "--yes", "--tracking-uri", store.uri) == 0
    assert _names(store) == {"another"}
    assert _names(store, deleted=True) == {"above", "below", "lowest"}


def test_a_run_that_runs_is_not_deleted(opened: Opener, store: Store) -> None:
    run = opened("live")
    run.metrics({"train/loss": 1.0}, 0)
    while run.run_id is None:
        pass
    with pytest.raises(UserError, match="run live: the run is still in progress; stop it first"):
        deleting.find_runs_to_delete(store, ["live"])


def test_a_model_with_an_alias_is_not_deleted(opened: Opener, project: Store, tmp_path: Path) -> None:
    _register(opened, tmp_path)
    with pytest.raises(UserError) as caught:
        deleting.find_runs_to_delete(project, ["registered"])
    assert "run registered: its model is version 1 of 'toy', alias champion; promote another" in caught.value.line()
    assert caught.value.code == 3


def _register(opened: Opener, tmp_path: Path, alias: str | None = "champion") -> None:
    (tmp_path / "registered" / "model").mkdir(parents=True)
    (tmp_path / "registered" / "model" / "config.json").write_text("{}")
    run = opened("registered")
    run.register(run.model(tmp_path / "registered" / "model", name="m", model_type="distill"), "toy", alias)
    assert run.finish().left == 0


def test_a_run_deleted_meanwhile_is_no_error(opened: Opener, store: Store, seen: Seen) -> None:
    opened("a").finish()
    opened("b").finish()
    found = deleting.find_runs_to_delete(store, ["a", "b"])
    seen.client.delete_run(found[0].row.run_id)
    assert deleting.delete(store, found) == 2
    assert _names(store) == set()


# --- collecting ---------------------------------------------------------------------------------------------------


def test_gc_removes_deleted_runs_with_their_files_and_orphans_alone(project: Store, seen: Seen) -> None:
    assert project.database is not None
    artifacts = project.database.parent / "artifacts" / "toy"
    run = seen.run(TEACHER)
    (artifacts / run.info.run_id / "artifacts").mkdir(parents=True)
    (artifacts / run.info.run_id / "artifacts" / "plot.svg").write_text("x" * 100)
    orphan, foreign = artifacts / ("b" * 32) / "artifacts", artifacts / "notes of mine"
    for folder in (orphan, foreign):
        folder.mkdir(parents=True)
        (folder / "file").write_text("x" * 10)
    deleting.delete(project, deleting.find_runs_to_delete(project, [TEACHER]))
    found = collecting.garbage(project)
    assert sorted((one.kind, one.bytes) for one in found.gone) == [("model", 2), ("orphan", 10), ("run", 100)]
    assert collecting.garbage(project, older_than_days=1).gone == [g for g in found.gone if g.kind == "orphan"]
    assert collecting.collect(project, found) == found.bytes == 112
    assert not orphan.exists()
    assert not (artifacts / run.info.run_id).exists()
    assert (foreign / "file").exists(), "what has not the name of a run is not ours to remove"
    assert len(list((artifacts / "models").iterdir())) == 1, "the student's model stays"
    assert _names(project) == {STUDENT}
    assert _names(project, deleted=True) == set()
    assert collecting.garbage(project).gone == []


def test_gc_keeps_what_the_registry_holds(opened: Opener, store: Store, seen: Seen, tmp_path: Path) -> None:
    _register(opened, tmp_path, alias=None)
    seen.client.delete_run(seen.run("registered").info.run_id)
    found = collecting.garbage(store)
    assert found.gone == []
    assert found.kept == ["run registered is kept: its model is version toy/1 of the registry"]
    assert (download_model("models:/toy/1", store.uri) / "config.json").is_file()


def test_gc_of_a_deleted_experiment(opened: Opener, store: Store, seen: Seen) -> None:
    opened("a", experiment="old").finish()
    opened("b").finish()
    seen.client.delete_experiment(seen.client.get_experiment_by_name("old").experiment_id)
    found = collecting.garbage(store)
    assert {(one.kind, one.name) for one in found.gone} == {("run", "a"), ("experiment", "old")}
    collecting.collect(store, found)
    assert _names(store) == {"b"}
    opened("c", experiment="old").finish()
    assert _names(store) == {"b", "c"}


def test_gc_asks_and_needs_the_database(store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    assert _call("runs", "gc", "--tracking-uri", "http://127.0.0.1:9") == 2
    assert "needs the database file and the folders beside it, but http://127.0.0.1:9" in capsys.readouterr().err
    assert _call("runs", "gc", "--json", "--tracking-uri", store.uri) == 0
    assert json.loads(capsys.readouterr().out) == {"gone": [], "kept": [], "freed": 0}


def test_only_real_folders_below_are_removed(tmp_path: Path) -> None:
    inside, outside = tmp_path / "root", tmp_path / "outside"
    for folder in (inside, outside):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "file").write_text("abc")
    (inside / "link").symlink_to(outside)
    for wrong in (inside, outside / "a", inside / "link", inside / "link" / "a", inside / ".." / "outside" / "a"):
        with pytest.raises(UserError, match="cannot be removed"):
            remove_tree(wrong, inside)
    (inside / "a" / "link").symlink_to(outside)
    assert remove_tree(inside / "a", inside) == 3
    assert (outside / "a" / "file").exists()
    assert remove_tree(inside / "a", inside) == 0


# --- relocating ---------------------------------------------------------------------------------------------------


def test_a_moved_project_finds_its_models_again(
    tmp_path: Path, template: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tmp_path / "my project", tmp_path / "elsewhere" / "project é"
    (old / "mlruns").mkdir(parents=True)
    shutil.copy(template, old / "mlruns" / "mlflow.db")
    log_toy_runs(old / "runs", Store(f"sqlite:///{old}/mlruns/mlflow.db"), "toy", rows=2)
    new.parent.mkdir()
    shutil.move(old, new)
    store = Store(f"sqlite:///{new}/mlruns/mlflow.db")
    run = Seen(store).run(STUDENT)
    with pytest.raises(UserError, match=r"the files of .* are missing; if the project was moved"):
        download_model(f"runs:/{run.info.run_id}/{STUDENT}", store.uri)

    monkeypatch.chdir(new)
    with pytest.raises(
        UserError,
        match=r"the store was moved or copied: its artifact paths lead to .*; update them first: compress",
    ):
        sync(new / "runs")
    with pytest.raises(UserError, match="the store was moved or copied"):
        log_toy_runs(new / "more", store, "toy", rows=2)
    assert not old.exists(), "nothing is written to the old place"
    assert _call("runs", "relocate", "--yes", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["old"], told["new"], told["missing"]) == (str(old), str(new), [])
    assert told["changes"]["logged_models.artifact_location"] == 2
    assert (download_model(f"runs:/{run.info.run_id}/{STUDENT}", store.uri) / "config.json").is_file()
    assert Seen(store).run(STUDENT).data.tags["compress.folder"] == str(new / "runs" / STUDENT)
    (done, _) = sync(new / "runs")
    assert done.run_id in {r.info.run_id for r in Seen(store).runs()}, "a journal follows its project"
    assert len(Seen(store).runs()) == 2
    before = schema.schema_version(Path(told["backup"]))
    assert before == schema.schema_version(new / "mlruns" / "mlflow.db")
    with pytest.raises(UserError, match="nothing to change: every artifact path points to the store's folder"):
        relocating.plan(store)


def test_the_runs_of_a_copied_project_are_sent_to_its_own_store(
    tmp_path: Path, template: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new, own = tmp_path / "old", tmp_path / "new", tmp_path / "own"
    for project in (old, own):
        (project / "mlruns").mkdir(parents=True)
        shutil.copy(template, project / "mlruns" / "mlflow.db")
    log_toy_runs(old / "runs", Store(f"sqlite:///{old}/mlruns/mlflow.db"), "toy", rows=2)
    shutil.copytree(old, new)
    monkeypatch.chdir(new)
    with pytest.raises(UserError, match=r"new/mlruns/mlflow\.db: the store was moved or copied"):
        sync(new / "runs")
    assert _call("runs", "relocate", "--yes") == 0
    sync(new / "runs")
    written = read_state(state_path(new / "runs" / STUDENT))
    assert written is not None
    assert written.store == f"sqlite:///{new}/mlruns/mlflow.db"
    monkeypatch.chdir(own)  # another project, beside which the run never was
    (done, _) = sync(old / "runs")
    assert (done.sent, len(Seen(Store(f"sqlite:///{own}/mlruns/mlflow.db")).runs())) == (0, 0)


def test_a_copied_store_does_not_write_into_the_first_one(project: Store, tmp_path: Path) -> None:
    assert project.database is not None
    relocating.require_in_place(project)
    shutil.copytree(project.database.parent, tmp_path / "copy" / "mlruns")
    address = f"sqlite:///{tmp_path}/copy/mlruns/mlflow.db"
    with pytest.raises(UserError) as error:
        relocating.require_in_place(Store(address, "--tracking-uri"))
    assert error.value.line() == (
        f"{address}: the store was moved or copied: its artifact paths lead to {project.database.parent}/artifacts; "
        f"update them first: compress runs relocate --tracking-uri {address}"
    )
    (tmp_path / "link").symlink_to(project.database.parent, target_is_directory=True)
    relocating.require_in_place(Store(f"sqlite:///{tmp_path}/link/mlflow.db"))
    relocating.require_in_place(Store(f"sqlite:///{tmp_path}/no.db"))
    (tmp_path / "text.db").write_text("no database")
    relocating.require_in_place(Store(f"sqlite:///{tmp_path}/text.db"))


def test_an_experiment_whose_files_are_elsewhere_on_purpose_is_used(project: Store, tmp_path: Path) -> None:
    assert project.database is not None
    project.client().create_experiment("shared", artifact_location=(tmp_path / "files" / "shared").as_uri())
    relocating.require_in_place(project)


def test_relocating_what_leads_nowhere(project: Store) -> None:
    with pytest.raises(
        UserError, match="no artifact path of the store points there: all of them point to the store's folder"
    ):
        relocating.plan(project, Path("/nowhere"))
    assert project.database is not None
    here = project.database.parent.parent
    assert relocating.plan(project, here, Path("/there")).missing == [TEACHER, STUDENT]


def test_a_folder_is_no_part_of_one_whose_name_begins_alike(project: Store) -> None:
    assert project.database is not None
    near = project.database.parent.parent.parent / project.database.parent.parent.name[:-1]
    with pytest.raises(UserError, match="no artifact path of the store points there"):
        relocating.plan(project, near)


# --- an older store -----------------------------------------------------------------------------------------------

OLD_SCHEMA = "0584bdc529eb"  # MLflow 2.22


def _old_store(database: Path) -> None:
    """A store as an earlier MLflow made it, by its own migrations up to there, with one run."""
    import sqlalchemy
    from alembic import command
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base

    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(f"sqlite:///{database}")
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, OLD_SCHEMA)
        connection.exec_driver_sql(
            "INSERT INTO experiments (name, artifact_location, lifecycle_stage) VALUES ('toy', '/x', 'active')"
        )
        connection.exec_driver_sql(
            "INSERT INTO runs (run_uuid, name, source_type, user_id, status, start_time, lifecycle_stage, "
            f"artifact_uri, experiment_id) VALUES ('{'a' * 32}', 'old', 'LOCAL', 'me', 'FINISHED', 1, 'active', "
            "'/x/a', 1)"
        )
    engine.dispose()


def test_an_old_store_is_copied_and_brought_up_to_date(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    database = tmp_path / "mlflow.db"
    _old_store(database)
    with caplog.at_level(logging.WARNING, "compress.tracking"):
        assert _names(Store(f"sqlite:///{database}")) == {"old"}
    (kept,) = (tmp_path / "backups").iterdir()
    assert kept.name.endswith(f"-before-schema-{OLD_SCHEMA}.db")
    assert schema.schema_version(kept) == OLD_SCHEMA != schema.schema_version(database)
    assert f"was written by an older MLflow and has been upgraded; backup: {kept}" in caplog.text
    assert _names(Store(f"sqlite:///{database}")) == {"old"}
    assert len(list((tmp_path / "backups").iterdir())) == 1, "once is enough"


def test_a_change_of_tables_that_fails_leaves_the_store_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.store.db import utils

    def broken(engine) -> None:
        with engine.begin() as connection:
            connection.exec_driver_sql("DROP TABLE runs")
        raise RuntimeError("the power of this test")

    database = tmp_path / "mlflow.db"
    _old_store(database)
    monkeypatch.setattr(utils, "_upgrade_db", broken)
    with pytest.raises(UserError, match="the power of this test; it is unchanged; a copy"):
        list_runs(Store(f"sqlite:///{database}"))
    assert schema.schema_version(database) == OLD_SCHEMA
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT name FROM runs").fetchall() == [("old",)]
    connection.close()


@pytest.mark.thorough
def test_an_upgrade_that_is_killed_leaves_the_store_as_it_was(tmp_path: Path, scripts: ForkedScripts) -> None:
    database = tmp_path / "mlflow.db"
    _old_store(database)
    killed = _touch(
        scripts, database, "import os; utils._upgrade_db = lambda engine: (upgrade(engine), os.kill(os.getpid(), 9))"
    )
    assert killed.code == -9
    assert schema.schema_version(database) == OLD_SCHEMA
    assert _names(Store(f"sqlite:///{database}")) == {"old"}


# --- a store that is made ------------------------------------------------------------------------------------------


def _touch(scripts: ForkedScripts, database: Path, first: str, **variables: str) -> Ended:
    """A process of its own opens the store, after `first`."""
    code = (
        "import sys; from mlflow.store.db import utils; from compress.tracking import Store; "
        f"upgrade = utils._upgrade_db; {first}\nStore(sys.argv[1]).client()"
    )
    cache = str(database.parent.parent / "cache")
    return scripts.run(code, f"sqlite:///{database}", COMPRESS_CACHE=cache, **variables)


@pytest.mark.thorough
@pytest.mark.parametrize("fault", ["folder.after_fill:1:kill", "file.after_fsync:1:kill", "file.after_chunk:1:enospc"])
def test_a_store_that_could_not_be_finished_is_made_by_the_next(
    fault: str, tmp_path: Path, scripts: ForkedScripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the first the empty store of the cache is being written, in the others the store itself, copied from it."""
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    if fault.startswith("file"):
        schema.prepare(tmp_path / "another.db")
    database = tmp_path / "mlruns" / "mlflow.db"
    died = _touch(scripts, database, "pass", COMPRESS_FAULT=fault)
    assert died.code == (-9 if fault.endswith("kill") else 1), died.err
    assert not database.exists()
    store = Store(f"sqlite:///{database}")
    assert store.client().search_experiments()
    assert _names(store) == set()
    assert sorted(path.name for path in database.parent.iterdir()) == ["mlflow.db", "mlflow.db.lock"]


def _half_made(database: Path, version: str | None) -> None:
    """What is left when a process dies that makes the tables in place; None: before any version was noted."""
    import sqlalchemy
    from alembic import command
    from mlflow.store.db import utils
    from mlflow.store.tracking.dbmodels.initial_models import Base

    engine = sqlalchemy.create_engine(f"sqlite:///{database}")
    Base.metadata.create_all(engine)
    with engine.begin() as connection:
        if version is not None:
            config = utils._get_alembic_config(f"sqlite:///{database}")
            config.attributes["connection"] = connection
            command.upgrade(config, version)
        connection.exec_driver_sql("CREATE TABLE webhooks (webhook_id VARCHAR(256) NOT NULL)")
    engine.dispose()


@pytest.mark.parametrize("version", [None, OLD_SCHEMA])
def test_a_half_made_store_of_an_earlier_version_is_set_aside(
    version: str | None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    database = tmp_path / "mlflow.db"
    _half_made(database, version)
    with caplog.at_level(logging.WARNING, "compress.tracking"):
        assert _names(Store(f"sqlite:///{database}")) == set()
    (kept,) = (tmp_path / "backups").iterdir()
    assert kept.name.endswith("-before-repair.db")
    assert (
        f"was never finished, since a process died while making it, and holds no runs; a new one replaces it; "
        f"backup: {kept}" in caplog.text
    )
    assert schema.schema_version(database) == schema.newest_version()


def test_a_half_upgraded_store_with_a_run_is_never_set_aside(tmp_path: Path) -> None:
    database = tmp_path / "mlflow.db"
    _old_store(database)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE webhooks (webhook_id VARCHAR(256) NOT NULL)")
    connection.close()
    with pytest.raises(UserError, match="table webhooks already exists; it is unchanged"):
        list_runs(Store(f"sqlite:///{database}"))
    with sqlite3.connect(database) as connection:
        assert connection.execute("SELECT name FROM runs").fetchall() == [("old",)]
    connection.close()


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    database = tmp_path / "mine.db"
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    connection.close()
    assert not schema._is_half_made(database, None)
    database.write_bytes(b"not a database at all" * 100)
    assert not schema._is_half_made(database, None)


def test_a_store_is_made_without_a_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "file"))
    store = Store(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    assert _names(store) == set()


def test_a_newer_store_is_refused(store: Store) -> None:
    assert store.database is not None
    with sqlite3.connect(store.database) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    connection.close()
    with pytest.raises(UserError, match="the store was written by a newer MLflow: its schema version is ffff"):
        list_runs(store)
