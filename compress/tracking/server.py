"""Starts, watches and stops the MLflow server of `compress ui`."""

from __future__ import annotations

import http.client
import json
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from compress.errors import ExitCode, UserError, printable
from compress.tracking.names import redact
from compress.tracking.store import Store

LOOPBACK = ("127.0.0.1", "localhost", "::1")
PORT = 5000
START_SECONDS = 120.0
STOP_SECONDS = 10.0
STARTS = 5
FIRST_RUNS = 100  # what the page asks for to begin with
_MARK = "X-Compress-Server"


@dataclass
class Server:
    """A running server. `wait` returns when it ends by itself."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    mark: str
    said: deque[str] = field(default_factory=lambda: deque(maxlen=50))

    def __post_init__(self) -> None:
        self.listener = threading.Thread(target=self.listen, daemon=True)

    @property
    def address(self) -> str:
        """Where a browser of this machine finds it."""
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}"

    def wait(self) -> int:
        return self.process.wait()

    def listen(self) -> None:
        """Reads what it says to the end, so that it never waits for a reader; the last lines are kept."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            text = line.decode(errors="replace").strip()
            if text:
                self.said.append(text)

    def warm(self, experiment_id: str) -> threading.Thread:
        """Asks it, beside what goes on, for what a page of this experiment asks first: a new server's first answer
        takes some seconds, which then pass while the browser still reads the page's own files."""
        thread = threading.Thread(target=_ask_for_runs, args=(self.address, experiment_id), daemon=True)
        thread.start()
        return thread

    def stop(self) -> None:
        """Asks it and its helpers to end, and makes them when they do not."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def end(self) -> None:
        """Stops it and lets go of what it said."""
        self.stop()
        self.listener.join(STOP_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the whole group has ended
            os.killpg(self.process.pid, number)


def check_host(host: str, exposed: bool) -> None:
    """UserError unless only this machine can reach the server, or everybody was meant to."""
    if host in LOOPBACK or exposed:
        return
    raise UserError(
        f"{host} is reachable from other machines and the page has no login: anyone can delete runs",
        where="--host",
        do="remove it and use an ssh tunnel, or add --expose",
        code=ExitCode.REFUSED,
    )


def choose_port(host: str, wanted: int | None) -> int:
    """`wanted` if it is free; without a wish, 5000 or the next free one. UserError when it is taken."""
    if wanted is not None:
        if not _free(host, wanted):
            raise UserError(
                f"port {wanted} is already in use",
                where="--port",
                do="remove the option to use any free port",
                code=ExitCode.REFUSED,
            )
        return wanted
    for port in range(PORT, PORT + 50):
        if _free(host, port):
            return port
    raise UserError(
        f"no free port between {PORT} and {PORT + 49}", where="--port", do="name one", code=ExitCode.REFUSED
    )


def _free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        if os.name == "posix":  # as servers do: a port that rests after its last connection is free
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OverflowError:
            raise UserError(f"{port} is not a valid port", where="--port", why="allowed: 1 to 65535") from None
        except socket.gaierror as error:
            raise UserError(f"{host} is not a valid address", where="--host", why=str(error)) from None
        except OSError:
            return False
    return True


@contextmanager
def run_server(store: Store, host: str, wanted: int | None) -> Iterator[Server]:
    """A server that answers on the port `wanted`, or on a free one; it ends with the block.

    Raises UserError when the port is taken, or with the server's last words when it does not start.
    """
    server = _start(store, host, wanted)
    try:
        yield server
    finally:
        server.end()


def _start(store: Store, host: str, wanted: int | None) -> Server:
    for start in range(1, STARTS + 1):
        server = _launch(store, host, choose_port(host, wanted))
        try:
            _await_answer(server)
            return server
        except BaseException as error:
            server.end()
            # another program took the port between our look and the server's start: the next free one will do
            lost = isinstance(error, UserError) and wanted is None and "in use" in str(error)
            if not lost or start == STARTS:
                raise
    raise AssertionError


def _launch(store: Store, host: str, port: int) -> Server:
    mark = secrets.token_hex(8)
    process = subprocess.Popen(
        _command(store, host, port, mark),
        env=_environment(store),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches us, and we end it and its helpers in order
    )
    server = Server(process, host, port, mark)
    server.listener.start()
    return server


def _command(store: Store, host: str, port: int, mark: str) -> list[str]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
    # uvicorn puts a folder first on sys.path, by default the working directory: what lies there would be imported
    installed = shlex.quote(sysconfig.get_path("purelib"))
    command += ["--uvicorn-opts", f"--header {_MARK}:{mark} --app-dir {installed}"]
    if store.database is not None:
        # for experiments that others make through the page; ours carry their own place
        command += ["--default-artifact-root", (store.database.parent / "artifacts").as_uri()]
    return command


def _environment(store: Store) -> dict[str, str]:
    """The address travels by environment: a command line with a password can be read by every user of the machine."""
    return {
        **os.environ,
        "MLFLOW_BACKEND_STORE_URI": store.uri,
        "MLFLOW_REGISTRY_STORE_URI": store.uri,
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "DO_NOT_TRACK": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",  # eight helper processes for things we do not show
        "PYTHONSAFEPATH": "1",  # the working directory's files are not imported
        "PYTHONWARNINGS": "ignore",
    }


def _await_answer(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if server.process.poll() is not None:
            raise _did_not_start(f"it exited with code {server.process.returncode}", server)
        if _mark_at(server.address) == server.mark:  # another's server may answer on a port that both wanted
            return
        if time.monotonic() > deadline:
            raise _did_not_start(f"no answer after {START_SECONDS:.0f} s", server)
        time.sleep(0.1)


def _mark_at(address: str) -> str | None:
    """The mark of the healthy server there, empty for one that is not ours; None without an answer."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return (answer.headers.get(_MARK) or "") if answer.status == 200 else None
    except (urllib.error.URLError, OSError, ValueError):
        return None


def _ask_for_runs(address: str, experiment_id: str) -> None:
    body = json.dumps({"experiment_ids": [experiment_id], "max_results": FIRST_RUNS}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(f"{address}/ajax-api/2.0/mlflow/runs/search", body, headers)
    # nobody waits for this answer: a server that ends, or has no such experiment, is told of elsewhere
    with (
        suppress(OSError, ValueError, http.client.HTTPException),
        urllib.request.urlopen(request, timeout=60) as answer,
    ):
        while answer.read(1 << 16):  # in pieces: nothing of it is needed
            pass


def healthy(address: str) -> bool:
    """True when an MLflow server answers there."""
    return _mark_at(address) is not None


def _did_not_start(why: str, server: Server) -> UserError:
    server.listener.join(1.0)
    said = [printable(redact(line), 300) for line in server.said]
    telling = [line for line in said if "ERROR" in line] or said or ["nothing"]
    return UserError(
        "the MLflow server did not start", why=f"{why}; its output: {telling[-1]}", code=ExitCode.ENVIRONMENT
    )
