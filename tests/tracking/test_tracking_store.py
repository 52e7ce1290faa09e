"""Which store it is, and that several processes can make it together."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from compress.errors import UserError
from compress.tracking import Store, resolve_store


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
            "unknown kind of store 'htp://***@host': found 'htp:', allowed are http, https, sqlite",
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


_FIRST_TOUCH = """
import sys
from compress.tracking import Store
client = Store(sys.argv[1]).client()
client.create_experiment(sys.argv[2])
"""


def test_four_processes_make_one_fresh_store(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlruns/mlflow.db"
    started = [
        subprocess.Popen([sys.executable, "-c", _FIRST_TOUCH, uri, f"e{i}"], stderr=subprocess.PIPE) for i in range(4)
    ]
    errors = [process.communicate(timeout=120)[1].decode() for process in started]
    assert [p.returncode for p in started] == [0, 0, 0, 0], errors
    assert errors == [""] * 4, "nothing of mlflow's own is printed"
    names = {e.name for e in Store(uri).client().search_experiments()}
    assert {"e0", "e1", "e2", "e3"} <= names
