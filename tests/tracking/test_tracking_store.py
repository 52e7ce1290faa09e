"""Which store it is, and that several processes can make it together."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tracking_tools import Seen

from compress.cli.main import main
from compress.errors import UserError
from compress.tracking import Store, open_run, resolve_store


def test_the_default_lies_in_the_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    store = resolve_store()
    assert store.database == tmp_path / "mlruns" / "mlflow.db"
    assert store.artifact_location("my task") is not None
    assert (store.artifact_location("toy") or "").endswith("/mlruns/artifacts/toy")
    assert not (tmp_path / "mlruns").exists(), "naming a store makes nothing"


def test_the_environment_wins_and_the_flag_wins_over_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://server:5000/")
    assert resolve_store().uri == "http://server:5000"
    assert resolve_store(f"sqlite:///{tmp_path}/x.db").database == tmp_path / "x.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "  ")
    assert resolve_store(project=tmp_path).database == tmp_path / "mlruns" / "mlflow.db"


def test_a_relative_database_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve_store("sqlite:///a/b.db").database == tmp_path / "a" / "b.db"


@pytest.mark.parametrize(
    ("uri", "message"),
    [
        ("./mlruns", "--tracking-uri: './mlruns' is a folder, and MLflow keeps runs in a database or on a server"),
        ("file:///x/mlruns", "--tracking-uri: 'file:///x/mlruns' is a folder"),
        ("sqlite://", "'sqlite://' names no database file; write sqlite:///path/to/mlflow.db"),
        ("http:/host", "'http:/host' names no host; write http://host:port"),
        (
            "htp://u:canary@host",
            "unknown type of store 'htp://***@host': found 'htp:', allowed: http, https, sqlite",
        ),
    ],
)
def test_an_address_that_cannot_be_a_store(uri: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        resolve_store(uri)
    assert message in caught.value.line()
    assert "canary" not in caught.value.line()
    assert caught.value.code == 2


def test_a_password_is_never_shown() -> None:
    store = Store("http://me:canary@host:5000")
    assert store.shown == "http://***@host:5000"
    assert store.has_secret


_EIGHT_AT_ONCE = """
import os, sys
from pathlib import Path
from compress.tracking import Store, open_run
from compress.tracking.store import import_mlflow

import_mlflow()  # once for all, so that the store is what they wait for
folder, uri = Path(sys.argv[1]), sys.argv[2]

def log(name):
    said = []
    run = open_run(folder / name, experiment="toy", name=name, method="distill", store=Store(uri), warn=said.append)
    run.params({"seed": 1})
    for step in range(100):
        run.metrics({"train/loss": 1 / (step + 1)}, step)
    ending = run.finish()
    print(f"{ending.left} left {said}", flush=True)

children = []
for number in range(8):
    child = os.fork()
    if child == 0:
        log(f"r{number}")
        os._exit(0)
    children.append(child)
sys.exit(sum(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children))
"""


@pytest.mark.thorough
def test_eight_processes_at_once_on_a_fresh_store_lose_nothing(tmp_path: Path) -> None:
    store = Store(f"sqlite:///{tmp_path}/mlruns/mlflow.db")
    command = [sys.executable, "-c", _EIGHT_AT_ONCE, str(tmp_path), store.uri]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == "", "nothing of mlflow's own is printed"
    assert done.returncode == 0
    assert done.stdout == "0 left []\n" * 8
    seen = Seen(store)
    runs = sorted(seen.runs(), key=lambda run: run.info.run_name or "")
    assert [run.info.run_name for run in runs] == [f"r{number}" for number in range(8)]
    assert {run.info.status for run in runs} == {"FINISHED"}
    for run in runs:
        assert [step for step, _ in seen.points(run, "train/loss")] == list(range(100))


@pytest.mark.parametrize(
    ("scheme", "module", "install"),
    [
        ("postgresql", "psycopg", "'psycopg[binary]' (extra: 'compress-bert[postgres]')"),
        ("postgresql+psycopg2", "psycopg2", "'psycopg2-binary'"),
        ("mysql", "MySQLdb", "'mysqlclient' (extra: 'compress-bert[mysql]')"),
        ("mysql+pymysql", "pymysql", "'pymysql'"),
        ("mssql", "pyodbc", "'pyodbc'"),
    ],
)
def test_a_database_without_its_driver_names_the_package(
    scheme: str, module: str, install: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    assert main(["runs", "list", "--tracking-uri", f"{scheme}://me:canary@127.0.0.1/runs"]) == 6
    said = capsys.readouterr().err.removeprefix("loading mlflow …\n")  # where this test is the first to need it
    assert said == (
        f"error: {scheme}://***@127.0.0.1/runs: the database driver {module} is not installed; pip install {install}"
        ", or better: run an MLflow server in front of the database and give its address, http://host:port\n"
    )


@pytest.mark.parametrize(
    ("root", "why"),
    [
        (None, "MLFLOW_DEFAULT_ARTIFACT_ROOT is not set"),
        ("files", "MLFLOW_DEFAULT_ARTIFACT_ROOT is 'files', neither an address nor an absolute path"),
    ],
)
@pytest.mark.parametrize("scheme", ["postgresql", "mysql+pymysql"])
def test_a_bare_database_needs_a_place_for_files(
    tmp_path: Path, scheme: str, root: str | None, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", raising=False)
    if root is not None:
        monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", root)
    store = Store(f"{scheme}://me:canary@127.0.0.1/runs")
    with pytest.raises(UserError) as caught:
        open_run(tmp_path / "run", experiment="toy", name="run", method="distill", store=store)
    said = caught.value.line()
    assert why in said
    assert "put a server in front" in said
    assert "canary" not in said
    assert not (tmp_path / "run").exists()


def test_files_of_a_bare_database_go_below_the_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", "s3://bucket/runs/")
    assert Store("postgresql://me@127.0.0.1/runs").artifact_location("toy") == "s3://bucket/runs/toy"
    assert Store(f"sqlite:///{tmp_path}/mlflow.db").artifact_location("toy") == (tmp_path / "artifacts/toy").as_uri()
    assert Store("http://127.0.0.1:5000").artifact_location("toy") is None


def test_doctor_names_the_missing_driver(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    main(["doctor", "--json", "--tracking-uri", "postgresql://me:canary@127.0.0.1/runs"])
    said = capsys.readouterr().out
    (found,) = [row for row in json.loads(said) if row["subject"] == "store"]
    assert (found["state"], "psycopg is not installed" in found["found"]) == ("missing", True)
    assert "canary" not in said


@pytest.mark.parametrize("uri", ["mysql+nothing://me:canary@127.0.0.1/x", "postgresql://me:canary@127.0.0.1:port/x"])
def test_an_address_that_sqlalchemy_does_not_take(uri: str, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["runs", "list"], ["doctor"]):
        main([*command, "--tracking-uri", uri])
        said = "".join(capsys.readouterr())
        assert "is not a database address" in " ".join(said.split())
        assert "canary" not in said
