"""`compress ui`, `compress sync` and `compress runs` from the command line."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from forked_scripts import ForkedScripts
from toy_runs import log_toy_runs
from tracking_tools import Opener
from user_packages import write_packages

from compress.cli.main import main
from compress.errors import UserError
from compress.tracking import Store, server
from compress.tracking.listing import find_page, list_runs


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield listener.getsockname()[1]


def test_only_this_machine_unless_exposed() -> None:
    for host in ("127.0.0.1", "localhost", "::1"):
        server.check_host(host, exposed=False)
    server.check_host("0.0.0.0", exposed=True)
    with pytest.raises(UserError) as caught:
        server.check_host("0.0.0.0", exposed=False)
    assert "--host: 0.0.0.0 is reachable from other machines and the page has no login" in caught.value.line()
    assert caught.value.code == 3


def test_a_port_that_is_taken(taken: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        UserError, match=f"--port: port {taken} is already in use; remove the option to use any free port"
    ):
        server.choose_port("127.0.0.1", taken)
    monkeypatch.setattr(server, "PORT", taken)
    assert taken < server.choose_port("127.0.0.1", None) < taken + 50


def test_a_server_that_does_not_start_says_why(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    dying = [sys.executable, "-c", "print('http://u:canary@h is broken'); raise SystemExit(3)"]
    monkeypatch.setattr(server, "_command", lambda *_: dying)
    with pytest.raises(UserError) as caught, server.run_server(store, "127.0.0.1", 5999):
        pass
    line = caught.value.line()
    assert "the MLflow server did not start: it exited with code 3; its output: http://***@h is broken" in line


_SMALL_SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.send_header("X-Compress-Server", sys.argv[2])
        self.end_headers()
    def log_message(self, *_): ...

try:
    HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
except OSError as error:
    print("ERROR:", error, flush=True)
    print("shut down", flush=True)
"""


def test_a_port_that_another_takes_first(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two that start at once and saw the same port free, neither takes the other's server for its own."""
    monkeypatch.setattr(
        server, "_command", lambda _, __, port, mark: [sys.executable, "-c", _SMALL_SERVER, str(port), mark]
    )
    with server.run_server(store, "127.0.0.1", None) as first:
        looks: list[int] = []

        def free_at_first(host: str, port: int) -> bool:
            looks.append(port)
            return looks.count(first.port) == 1 or is_free(host, port)

        is_free = server._free
        monkeypatch.setattr(server, "PORT", first.port)
        monkeypatch.setattr(server, "_free", free_at_first)
        with server.run_server(store, "127.0.0.1", None) as second:
            assert first.port < second.port < first.port + 50
            assert server.healthy(first.address)
            assert server.healthy(second.address)
        assert looks.count(first.port) > 1
        looks.clear()
        with (
            pytest.raises(UserError, match=r"it exited with code 0; its output: ERROR: .* Address already in use"),
            server.run_server(store, "127.0.0.1", first.port),
        ):
            pass


@pytest.mark.thorough
def test_a_new_server_is_asked_first_for_what_the_page_will_ask(store: Store, tmp_path: Path) -> None:
    log_toy_runs(tmp_path / "runs", store, "opinions", rows=1)
    page = find_page(store)
    assert page is not None
    with server.run_server(store, "127.0.0.1", None) as one:
        asked = one.warm(page.experiment_id)
        asked.join(60)
        nobody = one.warm("no such experiment")
        nobody.join(60)
        assert not asked.is_alive()
    said = [line.partition("/runs/search HTTP/1.1")[2].split()[1] for line in one.said if "/runs/search" in line]
    assert said in (["200", "400"], ["200", "500"]), one.said  # MLflow 3.14 calls a wrong number its own fault
    gone = one.warm(page.experiment_id)
    gone.join(60)
    assert not gone.is_alive(), "a server that has ended is not waited for"


@pytest.mark.thorough
def test_ui_prints_the_link_and_ends_with_ctrl_c(store: Store, tmp_path: Path) -> None:
    log_toy_runs(tmp_path / "runs", store, "opinions", rows=1)
    work = write_packages(tmp_path / "work")  # the server imports none of these
    code = "import sys; from compress.cli.main import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", code, "ui", "--tracking-uri", store.uri]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=work, text=True)
    assert process.stdout is not None
    link = process.stdout.readline()
    try:
        page = find_page(store)
        assert page is not None
        address, _, rest = link.partition("/#/")
        assert address.startswith("http://127.0.0.1:")
        assert rest.startswith(f"experiments/{page.experiment_id}/runs?")
        assert "viewStateShareKey=compress-accuracy" in link
        mark = server._mark_at(address)
        assert mark
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors
    assert errors.splitlines()[-1] == "stopped"
    assert server._mark_at(address) != mark, "the server ended too"


def test_ui_of_an_unknown_experiment_names_the_nearest(
    opened: Opener, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    opened("run").finish()
    assert main(["ui", "--experiment", "tpy", "--tracking-uri", store.uri]) == 2
    assert "error: --experiment: no experiment 'tpy' in the store; did you mean 'toy'?" in capsys.readouterr().err


def test_ui_refuses_other_hosts_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ui", "--host", "0.0.0.0"]) == 3
    assert "add --expose" in capsys.readouterr().err


def test_runs_list_and_show(
    opened: Opener, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = opened("student")
    run.metrics({"quality/accuracy": 0.9})
    run.params({"seed": 1})
    run.tags({"measured.metric": "accuracy"})
    run.finish()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    assert main(["runs", "list", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["name"], row["status"], row["metrics"]) == ("student", "FINISHED", {"quality/accuracy": 0.9})
    assert main(["runs", "list"]) == 0
    listed = capsys.readouterr().out
    assert "student" in listed
    assert "accuracy 90.00 %" in listed
    assert main(["runs", "show", "student"]) == 0
    assert "quality/accuracy" in capsys.readouterr().out
    assert main(["runs", "show", "studnet"]) == 2
    assert "did you mean 'student'?" in capsys.readouterr().err


def test_runs_list_says_what_it_leaves_out(
    opened: Opener, store: Store, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store.uri)
    for name in ("one", "two"):
        opened(name).finish()
    notes = {
        ("--limit", "1"): "the newest 1 run; --limit shows more\n",
        ("--limit", "2"): "",
        ("--deleted",): "there are no deleted runs\n",
        ("--deleted", "--experiment", "toy"): "there are no deleted runs in experiment toy\n",
    }
    for options, note in notes.items():
        assert main(["runs", "list", *options]) == 0
        assert capsys.readouterr().err == note


@pytest.mark.thorough
def test_a_dead_run_is_shown_as_dead_and_sync_ends_it(
    store: Store, scripts: ForkedScripts, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = (
        "import sys, os, signal, time; from pathlib import Path; from compress.tracking import *\n"
        "r = open_run(Path(sys.argv[1]), experiment='toy', name='a', method='m', store=Store(sys.argv[2]))\n"
        "while r.run_id is None: time.sleep(0.05)\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert scripts.run(code, tmp_path / "run", store.uri).code == -signal.SIGKILL
    (row,) = list_runs(store)
    assert row.status.startswith(f"dead ({socket.gethostname()}, process ")
    assert main(["sync", str(tmp_path), "--tracking-uri", store.uri, "--json"]) == 0
    (done,) = json.loads(capsys.readouterr().out)
    assert done["status"] == "KILLED"
    assert [r.status for r in list_runs(store)] == ["KILLED"]


def test_sync_without_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sync", str(tmp_path)]) == 2
    assert "no tracked run in this folder" in capsys.readouterr().err
