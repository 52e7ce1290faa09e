"""A tracking server that sends more than anybody can need: what is read of it is bounded, and it is named."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from compress.errors import UserError
from compress.tracking import bounded
from compress.tracking.store import Store, open_client

LIMIT = 1 << 20
PIECE = b"[" * (1 << 16)


class Endless(BaseHTTPRequestHandler):
    """Answers with a status and bytes that do not end; counts those that were taken."""

    status, announced, sent = 200, None, 0

    def do_GET(self) -> None:
        kind = type(self)
        self.send_response(kind.status)
        if kind.announced is not None:
            self.send_header("Content-Length", str(kind.announced))
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while kind.sent < 300 * LIMIT:
                self.wfile.write(PIECE)
                kind.sent += len(PIECE)
        except OSError:
            pass  # the client has left
        self.close_connection = True

    do_POST = do_GET  # noqa: N815 - the name that the library calls

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(bounded, "LIMIT", LIMIT)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    Endless.status, Endless.announced, Endless.sent = 200, None, 0
    server = ThreadingHTTPServer(("127.0.0.1", 0), Endless)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.mark.parametrize("announced", [None, 3 << 30])
@pytest.mark.parametrize("status", [200, 404])
def test_no_more_than_the_limit_is_read(status: int, announced: int | None, address: str) -> None:
    Endless.status, Endless.announced = status, announced
    with pytest.raises(UserError, match="the answer is larger than 1 MB; check that this is the address of an MLflow"):
        open_client(Store(address))
    assert Endless.sent < 20 * LIMIT, "buffers of the system take some"


def test_what_is_tried_again_is_not_read_to_its_end(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR", "0")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_BACKOFF_JITTER", "0")
    Endless.status = 503
    with pytest.raises(UserError):
        open_client(Store(address))
    assert Endless.sent < 40 * LIMIT
