"""MLflow's own server over our store, for `compress ui`: started, waited for, ended with us."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
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


@dataclass
class Server:
    """A running server. `wait` returns when it ends by itself."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    said: deque[str] = field(default_factory=lambda: deque(maxlen=50))

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

    def stop(self) -> None:
        """Asks it and its helpers to end, and makes them when they do not."""
        if self.process.poll() is None:
            self._signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(STOP_SECONDS)
        self._signal(signal.SIGKILL)
        self.process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):  # the whole group has ended
            os.killpg(self.process.pid, number)


def check_host(host: str, exposed: bool) -> None:
    """UserError unless only this machine can reach the server, or everybody was meant to."""
    if host in LOOPBACK or exposed:
        return
    raise UserError(
        f"{host} can be reached from other machines, and the page has no login: whoever opens it can delete runs",
        where="--host",
        do="leave it out (and use an ssh tunnel), or add --expose",
        code=ExitCode.REFUSED,
    )


def choose_port(host: str, wanted: int | None) -> int:
    """`wanted` if it is free; without a wish, 5000 or the next free one. UserError when it is taken."""
    if wanted is not None:
        if not _free(host, wanted):
            raise UserError(
                f"port {wanted} is taken", where="--port", do="leave it out and one is found", code=ExitCode.REFUSED
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
            raise UserError(f"{port} is no port", where="--port", why="allowed are 1 to 65535") from None
        except socket.gaierror as error:
            raise UserError(f"{host} is no address", where="--host", why=str(error)) from None
        except OSError:
            return False
    return True


@contextmanager
def serving(store: Store, host: str, port: int) -> Iterator[Server]:
    """A server that answers; it ends with the block. UserError with its last words when it does not start."""
    process = subprocess.Popen(
        _command(store, host, port),
        env=_environment(store),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C reaches us, and we end it and its helpers in order
    )
    server = Server(process, host, port)
    listener = threading.Thread(target=server.listen, daemon=True)
    listener.start()
    try:
        _await_answer(server)
        yield server
    finally:
        server.stop()
        listener.join(STOP_SECONDS)
        assert process.stdout is not None
        process.stdout.close()


def _command(store: Store, host: str, port: int) -> list[str]:
    command = [sys.executable, "-m", "mlflow", "server", "--host", host, "--port", str(port), "--workers", "1"]
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
        "PYTHONWARNINGS": "ignore",
    }


def _await_answer(server: Server) -> None:
    deadline = time.monotonic() + START_SECONDS
    while True:
        if server.process.poll() is not None:
            raise _did_not_start(f"it ended with code {server.process.returncode}", server)
        if healthy(server.address):
            return
        if time.monotonic() > deadline:
            raise _did_not_start(f"no answer after {START_SECONDS:.0f} s", server)
        time.sleep(0.1)


def healthy(address: str) -> bool:
    """True when an MLflow server answers there."""
    try:
        with urllib.request.urlopen(f"{address}/health", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError, ValueError):
        return False


def _did_not_start(why: str, server: Server) -> UserError:
    last = printable(redact(server.said[-1]), 300) if server.said else "it said nothing"
    return UserError("the MLflow server did not start", why=f"{why}; its last line: {last}", code=ExitCode.ENVIRONMENT)
