"""How much of an answer MLflow's client reads into memory, how long it waits for one, and what it repeats.

A broken or foreign server may send any number of bytes. One that cannot be reached is given up soon, one that only
answers late is not. What makes a new thing in the store is not repeated blindly.
"""

from __future__ import annotations

import copy
import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException
from urllib3.exceptions import ConnectTimeoutError, MaxRetryError, NewConnectionError

if TYPE_CHECKING:
    from requests import Response, Session

LIMIT = 32 << 20
"""Bytes of one answer. A page of a thousand runs with a hundred figures each takes about ten million."""
PIECE = 1 << 14
"""Bytes read at once: few, as a compressed answer grows up to a thousand times."""
CONNECT_SECONDS = 5.0
CREATES = ("/runs/create", "/logged-models", "/model-versions/create")
"""Ends of the addresses that make something new each time: an answer that was lost may stand for one that is there."""
_BUSY = 429  # nothing was done
_MARK = "_bounded_by_compress"
FILE_TIMEOUT, FILE_SECONDS = "MLFLOW_ARTIFACT_UPLOAD_DOWNLOAD_TIMEOUT", "600"
"""How long the clients of clouds wait for one piece of a file. One of them gives up after a minute, another after this
time."""
_lock = threading.Lock()
_patient: list[float] = []
"""Seconds that are waited for at the moment, in the whole process: MLflow downloads in threads of its own."""
_raised: list[str] = []
"""FILE_TIMEOUT, while it is set by `wait_longer`."""


class TooLarge(RequestException):
    """An answer of more than LIMIT bytes. An OSError, as every failure of a connection."""


def read_bounded(answer: Response, *_: Any, stream: bool = False, **__: Any) -> Response:
    """The answer with its content read, as a hook of `requests`. stream: the caller reads it in pieces, and only what
    redirects it is read here. Raises TooLarge above LIMIT bytes, and reads no further."""
    if stream and not answer.is_redirect:
        return answer
    announced = answer.headers.get("Content-Length", "")
    if announced.isdigit() and int(announced) > LIMIT:
        raise _too_large(answer)
    content = bytearray()
    for piece in answer.iter_content(PIECE):
        content += piece
        if len(content) > LIMIT:
            raise _too_large(answer)
    answer._content = bytes(content)
    return answer


def _too_large(answer: Response) -> TooLarge:
    answer.close()
    return TooLarge(f"the answer is larger than {LIMIT >> 20} MB; check that this is the address of an MLflow server")


@contextmanager
def wait_longer(seconds: float) -> Iterator[None]:
    """Meanwhile the requests of this process wait at least so long for an answer, and those for files in a cloud
    longer, unless FILE_TIMEOUT says otherwise."""
    with _lock:
        _patient.append(seconds)
        if FILE_TIMEOUT not in os.environ:
            os.environ[FILE_TIMEOUT] = FILE_SECONDS
            _raised.append(FILE_TIMEOUT)
    try:
        yield
    finally:
        with _lock:
            _patient.remove(seconds)
            if not _patient and _raised:
                os.environ.pop(_raised.pop(), None)


def bound_client() -> None:
    """From now on MLflow's client reads answers with `read_bounded`; files that it downloads in pieces may be larger.
    Call it after mlflow was imported; a second call changes nothing."""
    from mlflow.utils import request_utils

    made = request_utils._get_request_session
    if hasattr(made, _MARK):
        return

    @functools.wraps(made)
    def get(*args: Any, **more: Any) -> Session:
        return _bound(made(*args, **more))

    setattr(get, _MARK, True)
    request_utils._get_request_session = get


def _bound(session: Session) -> Session:
    if not hasattr(session, _MARK):
        session.hooks["response"].append(read_bounded)
        session.request = _timed(session.request)
        for adapter in session.adapters.values():
            assert isinstance(adapter, HTTPAdapter)
            retry = copy.copy(adapter.max_retries)
            retry.__class__ = _closing(type(retry))
            adapter.max_retries = retry
        setattr(session, _MARK, True)
    return session


def _timed(request: Any) -> Any:
    """`Session.request` with one time to connect and one to answer."""

    @functools.wraps(request)
    def timed(*args: Any, timeout: Any = None, **more: Any) -> Any:
        if isinstance(timeout, int | float):
            timeout = (min(timeout, CONNECT_SECONDS), max([timeout, *_patient]))
        return request(*args, timeout=timeout, **more)

    return timed


@functools.cache
def _closing(kind: type) -> type:
    """A Retry that closes the connection of an answer instead of reading the answer to its end, and repeats nothing
    that may have been done."""

    class Closing(kind):
        def increment(
            self, method: Any = None, url: Any = None, response: Any = None, error: Any = None, *args: Any, **more: Any
        ) -> Any:
            if response is not None:
                response.close()
            refused = isinstance(error, NewConnectionError | ConnectTimeoutError)
            busy = response is not None and response.status == _BUSY
            if method == "POST" and str(url).partition("?")[0].endswith(CREATES) and not refused and not busy:
                pool = args[0] if args else more.get("_pool")
                raise MaxRetryError(pool, str(url), error)  # pyright: ignore[reportArgumentType]
            return super().increment(method, url, response, error, *args, **more)

    return Closing
