"""The stack that companies run: `mlflow server` on PostgreSQL, its files on S3. Thorough; skipped by name where a part
is missing: `pip install 'psycopg[binary]' 'moto[server]' boto3`, and PostgreSQL's programs."""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from s3_server import ENVIRONMENT, S3, require_moto
from tracking_tools import Opener, Seen

from compress.tracking import Store, sync
from compress.tracking.server import run_server

pytestmark = pytest.mark.thorough

RUNS = 8
DATA = [f"opinions-{i}" for i in range(6)]  # each a race of its own: without another try, some run loses one


def _program(name: str) -> str:
    """The path of a program of PostgreSQL; skips the test where it is not installed."""
    places = [os.environ.get("PATH", ""), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True))]
    found = shutil.which(name, path=os.pathsep.join(places))
    if found is None:
        pytest.skip(f"PostgreSQL's {name} is not installed")
    return found


@pytest.fixture(scope="module")
def postgres() -> Iterator[str]:
    """The address of an empty database of a PostgreSQL server of our own."""
    initdb, control = _program("initdb"), _program("pg_ctl")
    if importlib.util.find_spec("psycopg") is None:
        pytest.skip("the package psycopg is not installed")
    as_user: dict[str, str] = {"user": "postgres", "group": "postgres"} if os.geteuid() == 0 else {}  # it refuses root
    with tempfile.TemporaryDirectory() as folder, socket.socket() as probe:
        place = Path(folder) / "pg"
        place.mkdir()
        for path in (Path(folder), place):
            path.chmod(0o755)
        if as_user:
            shutil.chown(place, **as_user)
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
        probe.close()

        def run(*command: str) -> None:
            done = subprocess.run(
                command, cwd=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, **as_user, check=False
            )
            assert done.returncode == 0, command

        data = str(place / "data")
        run(initdb, "-D", data, "-A", "trust", "-U", "me", "-N")
        options = f"-p {port} -k {place} -c listen_addresses=127.0.0.1 -c fsync=off"
        run(control, "-D", data, "-o", options, "-l", str(place / "log"), "-w", "start")
        try:
            yield f"postgresql://me@127.0.0.1:{port}/postgres"
        finally:
            run(control, "-D", data, "-m", "immediate", "-w", "stop")


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    require_moto()
    made = S3()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        patch.setenv("MLFLOW_S3_ENDPOINT_URL", made.address)
        patch.setenv("MLFLOW_ARTIFACTS_DESTINATION", "s3://runs")
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        made.start()
        yield made
        made.stop()


@pytest.fixture(scope="module")
def server(postgres: str, s3: S3) -> Iterator[Store]:
    with run_server(Store(postgres), "127.0.0.1", None) as running:
        yield Store(running.address)


def test_runs_that_log_one_data_set_at_once_on_an_empty_database(
    opened: Opener, server: Store, warnings_said: list[str]
) -> None:
    runs = [opened(f"run-{i}", store=server, experiment="at once", interval=3600) for i in range(RUNS)]
    together = threading.Barrier(RUNS)

    def end(number: int) -> None:
        run = runs[number]
        for name in DATA:
            run.dataset(name, "0123456789abcdef", "embedded:opinions", "evaluation")
        run.metrics({"train/loss": 1.0}, 0)
        together.wait()
        run.finish(seconds=120)

    threads = [threading.Thread(target=end, args=(i,)) for i in range(RUNS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert warnings_said == []
    found = Seen(server).runs("at once")
    assert sorted(run.info.run_name for run in found) == [f"run-{i}" for i in range(RUNS)]
    assert [sorted(d.dataset.name for d in run.inputs.dataset_inputs) for run in found] == [DATA] * RUNS
    assert {run.info.status for run in found} == {"FINISHED"}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_files_wait_for_s3_and_nothing_else_does(
    opened: Opener, server: Store, s3: S3, warnings_said: list[str], tmp_path: Path
) -> None:
    s3.stop()
    run = opened("run", store=server, experiment="s3")
    folder = run.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    run.table(run.folder / "rows.json", ["a"], [[1]])
    run.model(folder, name="m", model_type="distill", metrics={"quality/accuracy": 0.5})
    run.metrics({"train/loss": 1.0}, 0)
    assert run.finish(seconds=120).left == 2
    (got,) = Seen(server).runs("s3")
    assert (got.info.status, got.data.metrics) == ("FINISHED", {"quality/accuracy": 0.5, "train/loss": 1.0})
    assert "does not accept files" in warnings_said[0]
    s3.start()
    (done,) = sync(tmp_path / "run")
    assert (done.sent, done.refused) == (0, 0)
    assert s3.names() == ["config.json", "rows.json"]


def test_a_bare_database_with_a_place_for_files(
    opened: Opener, postgres: str, tmp_path: Path, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_DEFAULT_ARTIFACT_ROOT", (tmp_path / "files").as_uri())
    run = opened("run", store=Store(postgres), experiment="bare")
    run.table(run.folder / "rows.json", ["a"], [[1]])
    assert run.finish(seconds=120).left == 0
    assert warnings_said == []
    assert [path.name for path in (tmp_path / "files" / "bare").rglob("*.json")] == ["rows.json"]
