"""A server that is not there, dies, lies or dawdles, a database that is locked or broken: training never notices."""

from __future__ import annotations

import http.client
import json
import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import requests
from tracking_tools import Opener, Seen

from compress.cli.main import main
from compress.errors import UserError
from compress.tracking import Store, TrackedRun, bounded, files, outages, refusals, replay, sender, sync
from compress.tracking.files import patience
from compress.tracking.names import slug
from compress.tracking.server import run_server


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")


@pytest.fixture(scope="module")
def server_port(template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """A real server on a store of its own."""
    import shutil

    folder = tmp_path_factory.mktemp("served")
    store = Store(f"sqlite:///{shutil.copy(template, folder / 'mlflow.db')}")
    # where files go that travel through the server, as `_through_the_server` has them do
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_ARTIFACTS_DESTINATION", str(folder / "files"))
        yield from _serve(store)


def _serve(store: Store) -> Iterator[int]:
    with run_server(store, "127.0.0.1", None) as server:
        yield server.port


UNIQUE_VIOLATION = json.dumps(
    {"error_code": "BAD_REQUEST", "message": "(psycopg.errors.UniqueViolation) duplicate key value: dataset_pk"}
).encode()
"""What `mlflow server` on PostgreSQL answers to the second of two runs that log one data set at once."""


class Proxy:
    """A server in front of the server, whose mood a test sets: ok, dead, error, busy, lost (works, says it did not),
    401 and 403.

    files: what becomes of files that are sent: ok, refused (403), held (no answer until `release`).  asked: method and
    path of each request.  raced: answers as PostgreSQL makes them when two runs insert one row at once, still to be
    given to `log-inputs`.
    """

    def __init__(self, port: int) -> None:
        self.mood = "ok"
        self.lost_posts = 0
        self.lost = "log-batch"  # in the address of requests whose answer is lost once
        self.raced = 0
        self.files = "ok"
        self.release = threading.Event()
        self.asked: list[tuple[str, str]] = []
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self._forward("GET")

            def do_POST(self) -> None:
                self._forward("POST")

            def do_PUT(self) -> None:
                self._forward("PUT")

            def do_PATCH(self) -> None:
                self._forward("PATCH")

            def _forward(self, method: str) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                mood = proxy.mood
                proxy.asked.append((method, self.path.partition("?")[0]))
                if method == "PUT" and proxy.files == "refused":
                    return self._answer(403, b"denied")
                if method == "PUT" and proxy.files == "held":
                    proxy.release.wait(60)
                if mood == "dead":
                    self.close_connection = True
                    self.connection.close()
                    return
                if mood.isdigit():
                    return self._answer(int(mood), b"You are not authenticated.")
                if mood in ("error", "busy"):
                    return self._answer(500 if mood == "error" else 429, b"not now")
                if proxy.raced and "log-inputs" in self.path:
                    proxy.raced -= 1
                    return self._answer(400, UNIQUE_VIOLATION)
                status, content = _ask(port, method, self.path, body)
                if mood == "lost" and proxy.lost in self.path and proxy.lost_posts < 1:
                    proxy.lost_posts += 1
                    return self._answer(503, b"the answer was lost")
                return self._answer(status, content)

            def _answer(self, status: int, content: bytes) -> None:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.store = Store(f"http://127.0.0.1:{self._server.server_address[1]}")
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()


def _ask(port: int, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body or None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@pytest.fixture
def proxy(server_port: int) -> Iterator[Proxy]:
    proxy = Proxy(server_port)
    yield proxy
    proxy.close()


def _steps(seen: Seen, experiment: str) -> list[int]:
    (got,) = seen.runs(experiment)
    return [s for s, _ in seen.points(got, "train/loss")]


def test_a_server_that_is_never_up(opened: Opener, warnings_said: list[str], store: Store, seen: Seen) -> None:
    run = opened("run", store=Store("http://me:canary@127.0.0.1:9"))
    for step in range(100):
        run.metrics({"train/loss": 1.0}, step)
    ending = run.finish(seconds=120)
    assert ending.left == 102
    assert ending.sync is not None
    assert ending.sync.startswith("compress sync ")
    down, left = warnings_said
    assert down.startswith(
        "tracking: http://***@127.0.0.1:9 does not accept metrics ([Errno 111] Connection refused); "
    )
    assert "the run continues and keeps them in" in down
    assert left == f"tracking: 102 records are not uploaded yet; upload them with: {ending.sync}"

    sync(run.folder, uri=store.uri)
    assert _steps(seen, "toy") == list(range(100))


@pytest.mark.thorough
@pytest.mark.parametrize("mood", ["dead", "error", "busy"])
def test_a_server_that_fails_and_comes_back(opened: Opener, proxy: Proxy, warnings_said: list[str], mood: str) -> None:
    run = opened("run", store=proxy.store, experiment=mood)
    run.metrics({"train/loss": 1.0}, 0)
    _wait(lambda: run.run_id is not None)
    proxy.mood = mood
    for step in range(1, 40):
        run.metrics({"train/loss": 1.0}, step)
        time.sleep(0.005)
    _wait(lambda: bool(warnings_said))
    proxy.mood = "ok"
    run.metrics({"train/loss": 1.0}, 40)
    ending = run.finish(seconds=120)
    assert ending.left == 0
    assert [("again" in said) for said in warnings_said] == [False, True], "one warning for each change"
    assert _steps(Seen(proxy.store), mood) == list(range(41))


def test_a_server_that_dies_and_never_returns(opened: Opener, proxy: Proxy, capfd: pytest.CaptureFixture[str]) -> None:
    run = opened("run", store=proxy.store, experiment="gone")
    run.metrics({"train/loss": 1.0}, 0)
    _wait(lambda: run.run_id is not None)
    proxy.mood = "dead"
    for step in range(1, 30):
        run.metrics({"train/loss": 1.0}, step)
    ending = run.finish(seconds=60)
    assert ending.left > 0
    proxy.mood = "ok"
    (done,) = sync(run.folder)
    assert done.run_id == ending.run_id
    assert _steps(Seen(proxy.store), "gone") == list(range(30))
    assert not capfd.readouterr().out, "--json is all that stands on stdout"


def test_a_dead_server_is_named_once_with_one_command(
    opened: Opener, proxy: Proxy, warnings_said: list[str], tmp_path: Path
) -> None:
    with outages.reported_once():  # as each command does
        runs = [opened("teachers/a", store=proxy.store, experiment="once")]
        runs.append(opened("run", store=proxy.store, experiment="once"))
        runs += [opened(f"run/{i}", store=proxy.store, experiment="once", parent=runs[1].parent) for i in range(2)]
        _wait(lambda: all(run.run_id is not None for run in runs))
        proxy.mood = "dead"
        for run in (runs[0], *runs[:0:-1]):
            run.metrics({"train/loss": 1.0}, 0)
            assert run.finish(seconds=120).left == 2
        down, first = warnings_said
        assert "does not accept metrics" in down
        upload = f"upload them with: compress sync {tmp_path / 'teachers' / 'a'}"
        assert first == f"tracking: 2 records are not uploaded yet; {upload}", "at once: this process may be killed"
    (left,) = warnings_said[2:]
    said, _, command = left.partition("; upload them with: ")
    assert said == "tracking: 8 records of 4 runs are not uploaded yet"
    assert command == f"compress sync {tmp_path / 'run'} {tmp_path / 'teachers' / 'a'}"
    proxy.mood = "ok"
    assert main(command.split()[1:]) == 0
    found = Seen(proxy.store).runs("once")
    assert {run.info.status for run in found} == {"FINISHED"}
    assert len(found) == 4


def test_what_a_run_leaves_is_told_though_its_end_was_interrupted(
    opened: Opener, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    run = opened("run", store=Store("http://127.0.0.1:9"))
    opened("never ended", store=run.store)
    with monkeypatch.context() as patch:
        patch.setattr(sender.Sender, "flush", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run.finish()
    (left,) = [said for said in warnings_said if "not uploaded" in said]
    assert left == f"tracking: 2 records are not uploaded yet; upload them with: compress sync {run.folder}"
    assert run.finish().left == 2


def test_many_folders_are_named_by_the_one_that_holds_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folders = [tmp_path / "runs" / name for name in ("a", "a/0", "b", "c")]
    assert outages.sync_command(folders) == "compress sync runs/a runs/b runs/c"
    assert outages.sync_command([*folders, tmp_path / "runs" / "d e"]) == "compress sync runs"
    assert outages.sync_command([tmp_path / "d e"]) == "compress sync 'd e'"
    apart = [tmp_path / name / "in" / "runs" for name in "abcd"]
    assert outages.sync_command(apart) == "compress sync " + " ".join(f"{name}/in/runs" for name in "abcd")


def test_an_answer_that_is_lost_doubles_nothing(opened: Opener, proxy: Proxy) -> None:
    proxy.mood = "lost"
    run = opened("run", store=proxy.store, experiment="lost")
    for step in range(30):
        run.metrics({"train/loss": 1.0}, step)
    assert run.finish(seconds=120).left == 0
    assert proxy.lost_posts == 1
    assert _steps(Seen(proxy.store), "lost") == list(range(30))


@pytest.mark.parametrize(("raced", "refused"), [(2, 0), (100, 1)])
def test_a_data_set_that_two_runs_log_at_once_is_tried_again(
    opened: Opener, proxy: Proxy, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch, raced: int, refused: int
) -> None:
    monkeypatch.setattr(refusals, "_PAUSE", 0.0)
    proxy.raced = raced
    run = opened("run", store=proxy.store, experiment=f"raced {raced}")
    run.dataset("opinions", "0123456789abcdef", "embedded:opinions", "evaluation")
    run.metrics({"train/loss": 1.0}, 0)
    assert run.finish(seconds=120).left == 0
    (got,) = Seen(proxy.store).runs(f"raced {raced}")
    assert len(got.inputs.dataset_inputs) == 1 - refused
    assert len(warnings_said) == refused
    assert got.info.status == "FINISHED"
    assert proxy.raced == (0 if not refused else raced - 4), "a bounded number of tries"


def _through_the_server(proxy: Proxy, experiment: str) -> None:
    """An experiment whose files travel through the server."""
    proxy.store.client().create_experiment(experiment, artifact_location=f"mlflow-artifacts:/{experiment}")


def _log_with_files(run: TrackedRun) -> None:
    """Figures, files and a model that is registered, the files first."""
    folder = run.folder / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    run.table(run.folder / "rows.json", ["a"], [[1]])
    run.metrics({"train/loss": 1.0}, 0)
    key = run.model(folder, name="m", model_type="distill", metrics={"quality/accuracy": 0.5})
    run.register(key, run.experiment, "best")
    run.metrics({"train/loss": 0.5}, 1)


@pytest.mark.parametrize("files", ["refused", "held"])
def test_files_that_do_not_arrive_hold_nothing_back(
    opened: Opener, proxy: Proxy, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch, files: str
) -> None:
    if files == "held":  # as after another run that waited in vain: only the figures are waited for
        outages.note_slow(proxy.store)
        monkeypatch.setattr(sender, "DOWN_SECONDS", 0.1)
    _through_the_server(proxy, files)
    proxy.files = files
    run = opened("run", store=proxy.store, experiment=files)
    _log_with_files(run)
    ending = run.finish(seconds=60)
    assert ending.left == 2, "the table and the files of the model"
    seen = Seen(proxy.store)
    (got,) = seen.runs(files)
    assert got.info.status == "FINISHED"
    assert [s for s, _ in seen.points(got, "train/loss")] == [0, 1]
    assert got.data.metrics["quality/accuracy"] == 0.5
    assert seen.client.search_model_versions(f"name = '{files}'") == [], "no alias of a model without its files"
    (model,) = seen.client.search_logged_models([got.info.experiment_id])
    assert model.status.value == "PENDING"
    if files == "refused":
        refused = warnings_said.pop(0)
        assert refused.startswith(f"tracking: {proxy.store.shown} does not accept files (")
        assert "403" in refused
        assert "its metrics and its status are uploaded" in refused
    left = f"tracking: the files of 2 records are not uploaded yet; upload them with: {ending.sync}"
    assert warnings_said == [left]

    proxy.files = "refused"
    proxy.release.set()
    with pytest.raises(UserError, match="does not accept the files; metrics and status of the runs are uploaded"):
        sync(run.folder)
    proxy.files = "ok"
    (done,) = sync(run.folder)
    assert (done.sent, done.refused, done.run_id) == (0, 0, got.info.run_id)
    assert seen.client.get_model_version_by_alias(files, "best").run_id == got.info.run_id
    (model,) = seen.client.search_logged_models([got.info.experiment_id])
    assert model.status.value == "READY"
    assert [f.path for f in seen.client.list_logged_model_artifacts(model.model_id)] == ["config.json"]
    assert [f.path for f in seen.client.list_artifacts(got.info.run_id)] == ["rows.json"]
    before = len(proxy.asked)
    sync(run.folder)
    assert not [method for method, _ in proxy.asked[before:] if method == "PUT"], "once"


def test_a_file_that_is_refused_for_good_takes_no_other_with_it(
    opened: Opener, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    sent = files._send

    def send(repository: object, file: Path, folder: str) -> None:
        if file.name == "a.json":
            raise MlflowException("too long a name", error_code=INVALID_PARAMETER_VALUE)
        if file.name == "b.json":
            raise OSError("the connection was lost")
        sent(repository, file, folder)  # pyright: ignore[reportArgumentType]

    run = opened("run")
    for name in ("a", "b", "c"):
        (run.folder / "figures").mkdir(exist_ok=True)
        (run.folder / "figures" / f"{name}.json").write_text("{}")
    with monkeypatch.context() as patch:
        patch.setattr(files, "_send", send)
        run.artifact(run.folder / "figures", "figures")
        ending = run.finish(seconds=120)
    assert ending.left == 1
    assert sync(run.folder)[0].refused == 0
    assert ending.run_id is not None
    found = [f.path for f in seen.client.list_artifacts(ending.run_id, "figures")]
    assert found == ["figures/a.json", "figures/b.json", "figures/c.json"]


def test_a_model_whose_files_are_refused_is_not_registered(
    opened: Opener, seen: Seen, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow.exceptions import MlflowException
    from mlflow.protos.databricks_pb2 import INVALID_PARAMETER_VALUE

    def refuse(*_: object) -> None:
        raise MlflowException("too large a file", error_code=INVALID_PARAMETER_VALUE)

    monkeypatch.setattr(files, "_send", refuse)
    run = opened("run")
    _log_with_files(run)
    assert run.finish(seconds=120).left == 0
    assert seen.client.search_registered_models() == []
    (refused,) = warnings_said
    assert "too large a file" in refused
    assert sync(run.folder)[0].refused == 3, "the table, the model and its version"


@pytest.mark.parametrize("trouble", ["deleted", "unreadable"])
def test_trouble_of_one_run_is_none_of_the_store(
    opened: Opener, seen: Seen, warnings_said: list[str], monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    run = opened("run")
    _wait(lambda: run.run_id is not None)
    if trouble == "deleted":
        seen.client.delete_run(run.run_id or "")
        run.metrics({"train/loss": 1.0}, 0)
    else:
        file = run.folder / "rows.json"

        def fail(*_: object) -> None:
            raise PermissionError(13, "Permission denied", str(file))

        file.write_text("{}")
        monkeypatch.setattr(files, "_send", fail)
        run.artifact(file)
    _wait(lambda: bool(warnings_said))
    other = opened("other")
    other.metrics({"train/loss": 1.0}, 0)
    assert other.finish(seconds=120).left == 0
    assert run.finish(seconds=120).left > 0
    assert [said.startswith("tracking: ") and " again" not in said for said in warnings_said] == [True, True]
    assert "not uploaded yet" in warnings_said[1]


def test_a_thread_that_hung_sends_nothing_of_a_folder_that_others_have(
    opened: Opener, store: Store, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened("run", store=Store("http://127.0.0.1:9"))
    run.dataset("opinions", "0123456789abcdef", "embedded:opinions", "evaluation")
    run.finish(seconds=0.1)
    hung = replay.Replay(run.folder, store, lambda _: None)
    with monkeypatch.context() as patch:
        patch.setattr(replay.Replay, "_log_datasets", lambda *_: hung.retire())
        hung.send_all()
    assert seen.run("run").info.status == "RUNNING", "the status comes after the data sets"
    assert hung.send_files() == 0
    assert sync(run.folder, uri=store.uri)[0].refused == 0
    assert seen.run("run").info.status == "FINISHED"
    assert len(seen.run("run").inputs.dataset_inputs) == 1


def test_files_that_a_process_did_not_send_are_still_known(
    opened: Opener, proxy: Proxy, warnings_said: list[str]
) -> None:
    _through_the_server(proxy, "again")
    proxy.files = "refused"
    first = opened("run", store=proxy.store, experiment="again")
    first.table(first.folder / "rows.json", ["a"], [[1]])
    assert first.finish("KILLED", seconds=120).left == 1
    proxy.files = "ok"
    second = opened("run", store=proxy.store, experiment="again")
    assert second.finish(seconds=120).left == 0
    seen = Seen(proxy.store)
    (got,) = seen.runs("again")
    assert [f.path for f in seen.client.list_artifacts(got.info.run_id)] == ["rows.json"]
    refused, left = warnings_said
    assert "does not accept files" in refused
    assert left.startswith("tracking: the files of 1 record are not uploaded yet; upload them with: compress sync ")


@pytest.mark.parametrize(("status", "said"), [("401", "rejects the login"), ("403", "does not permit this")])
def test_a_login_that_is_missing_names_the_variables(
    opened: Opener, proxy: Proxy, warnings_said: list[str], capsys: pytest.CaptureFixture[str], status: str, said: str
) -> None:
    proxy.mood = status
    opened("run", store=proxy.store).finish(seconds=120)
    (refused, _) = warnings_said
    assert f"({status}: the server {said}" in refused
    assert main(["runs", "list", "--tracking-uri", proxy.store.uri]) == 6
    told = capsys.readouterr().err
    for text in (refused, told):
        assert "MLFLOW_TRACKING_USERNAME" in text
        assert "MLFLOW_TRACKING_TOKEN" in text


@pytest.mark.parametrize("lost", ["runs/create", "mlflow/logged-models"])
def test_what_was_made_though_its_answer_was_lost_is_found(
    opened: Opener, proxy: Proxy, monkeypatch: pytest.MonkeyPatch, lost: str
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    proxy.mood, proxy.lost = "lost", lost
    experiment = slug(lost)
    run = opened("run", store=proxy.store, experiment=experiment)
    _log_with_files(run)
    assert run.finish(seconds=60).left == 0
    assert proxy.lost_posts == 1
    seen = Seen(proxy.store)
    (got,) = seen.runs(experiment)
    (model,) = seen.client.search_logged_models([got.info.experiment_id])
    assert model.status.value == "READY"


def test_how_long_a_server_may_take() -> None:
    waited = []

    class Session(requests.Session):
        def request(self, *_: object, timeout: object = None, **__: object) -> requests.Response:
            waited.append(timeout)
            return requests.Response()

    session = bounded._bound(Session())
    session.request("GET", "http://127.0.0.1:9", timeout=20)
    with patience():
        with patience():
            pass
        thread = threading.Thread(target=session.request, args=("PUT", "http://127.0.0.1:9"), kwargs={"timeout": 20})
        thread.start()  # as MLflow does to download
        thread.join()
        assert os.environ[bounded.FILE_TIMEOUT] == "600"
    assert bounded.FILE_TIMEOUT not in os.environ
    session.request("GET", "http://127.0.0.1:9", timeout=2)
    assert waited == [(5.0, 20), (5.0, 120.0), (2, 2)], "seconds to connect, seconds to answer"


@pytest.mark.thorough
def test_how_many_requests_a_run_takes(
    opened: Opener, proxy: Proxy, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "60")  # a request that is sent twice is counted twice
    _through_the_server(proxy, "counted")
    proxy.asked.clear()
    parent = opened("parent", store=proxy.store, experiment="counted", interval=3600)
    _wait(lambda: parent.run_id is not None)
    child = opened("child", store=proxy.store, experiment="counted", interval=3600, parent=parent.parent)
    for run in (child, parent):
        run.params({"method": "distill"})
        for name in ("training", "evaluation"):
            run.dataset(f"opinions/{name}", "0123456789abcdef", "embedded:opinions", name)
        for number in range(3):
            run.table(run.folder / f"rows-{number}.json", ["a"], [[number]])
            for step in range(50):
                run.metrics({"train/loss": 1.0}, 50 * number + step)
        _log_with_files(run)
        run.metrics({f"speed/{number}": float(number) for number in range(30)})
        run.note("# A run")
        assert run.finish(seconds=60).left == 0
    assert len([path for method, path in proxy.asked if method == "PUT"]) == 2 * 5, "each file once"
    others = [path for method, path in proxy.asked if method != "PUT"]
    assert len(others) <= 34, others  # of each run 6 for the registered model
    assert Seen(proxy.store).run("child", "counted").data.tags["mlflow.parentRunId"] == parent.run_id

    proxy.asked.clear()
    assert main(["runs", "list", "--tracking-uri", proxy.store.uri, "--experiment", "counted"]) == 0
    assert "parent" in capsys.readouterr().out
    assert len(proxy.asked) == 2, proxy.asked

    proxy.asked.clear()
    arguments = ["--experiment", "counted", "--tracking-uri", proxy.store.uri]
    assert main(["runs", "export", str(tmp_path / "archive"), *arguments]) == 0
    assert sum("get-history" in path for _, path in proxy.asked) == 2, "of the one curve of each run"
    assert len(proxy.asked) <= 3 * 10 + 12, proxy.asked
    seen = Seen(proxy.store)
    for file in (tmp_path / "archive" / "runs").glob("*.json"):
        told = json.loads(file.read_text())
        direct = [m for key in seen.client.get_run(told["id"]).data.metrics for m in _history(seen, told["id"], key)]
        assert sorted(map(tuple, told["metrics"])) == sorted(direct)


def _history(seen: Seen, run_id: str, key: str) -> list[tuple[str, float, int, int]]:
    return [(m.key, m.value, m.timestamp, m.step) for m in seen.client.get_metric_history(run_id, key)]


def test_a_locked_database_delays_nothing(opened: Opener, store: Store, seen: Seen, warnings_said: list[str]) -> None:
    run = opened("run")
    run.metrics({"train/loss": 1.0}, 0)
    _wait(lambda: run.run_id is not None)
    assert store.database is not None
    foreign = sqlite3.connect(store.database, isolation_level=None)
    foreign.execute("BEGIN EXCLUSIVE")
    for step in range(1, 200):
        run.metrics({"train/loss": 1.0}, step)
    assert run.finish(seconds=1.0).left > 0, "nothing has waited for the database, which is locked still"
    foreign.execute("ROLLBACK")
    foreign.close()
    _sync_when_free(run.folder)
    assert _steps(seen, "toy") == list(range(200))


def test_a_broken_database_is_told_in_one_line(
    opened: Opener, tmp_path: Path, warnings_said: list[str], capfd: pytest.CaptureFixture[str], template: Path
) -> None:
    broken = tmp_path / "broken" / "mlflow.db"
    broken.parent.mkdir()
    broken.write_bytes(b"this is no database, whatever its name says" * 100)
    run = opened("run", store=Store(f"sqlite:///{broken}"))
    for step in range(20):
        run.metrics({"train/loss": 1.0}, step)
        time.sleep(0.01)
    ending = run.finish(seconds=60)
    assert ending.left == 22
    assert len(warnings_said) == 2
    assert "(file is not a database)" in warnings_said[0]
    assert len("".join(capfd.readouterr())) < 1000, "mlflow's tracebacks stay off the terminal"


def _wait(condition, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)


def _sync_when_free(folder: Path) -> None:
    """The thread that hung in the locked database may still be at its last call."""
    deadline = time.monotonic() + 120
    while sync(folder)[0].live:
        assert time.monotonic() < deadline
        time.sleep(0.1)
