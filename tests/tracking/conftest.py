"""A store for each test, copied from one made once: making one takes seconds, copying none."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from tracking_tools import Opener, Seen

from compress.tracking import Store, TrackedRun, open_run, outages
from compress.tracking.store import silence


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An empty store's database."""
    database = tmp_path_factory.mktemp("template") / "mlflow.db"
    Store(f"sqlite:///{database}").client()
    return database


@pytest.fixture(scope="session")
def scripts() -> Iterator[ForkedScripts]:
    running = ForkedScripts()
    yield running
    running.close()


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """mlflow's and sqlalchemy's own warnings are named in `silence`; pytest resets the filters before each test."""
    silence()
    outages.forget()
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    database = tmp_path / "mlruns" / "mlflow.db"
    database.parent.mkdir()
    shutil.copy(template, database)
    return Store(f"sqlite:///{database}")


@pytest.fixture
def warnings_said() -> list[str]:
    return []


@pytest.fixture
def opened(tmp_path: Path, store: Store, warnings_said: list[str]) -> Iterator[Opener]:
    """Opens runs in `tmp_path/<folder>` with short intervals; what a test leaves open is ended."""
    runs: list[TrackedRun] = []

    def open_(folder: str = "run", **more: object) -> TrackedRun:
        arguments = {
            "experiment": "toy",
            "name": folder,
            "method": "distill",
            "store": store,
            "warn": warnings_said.append,
            "interval": 0.05,
            **more,
        }
        runs.append(open_run(tmp_path / folder, **arguments))  # pyright: ignore[reportArgumentType]
        return runs[-1]

    yield open_
    for run in runs:
        run.finish(seconds=0.1)


@pytest.fixture
def seen(store: Store) -> Seen:
    return Seen(store)
