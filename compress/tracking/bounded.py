"""How much of an answer MLflow's client reads into memory: a broken or foreign server may send any number of bytes."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any

from requests.adapters import HTTPAdapter
from requests.exceptions import RequestException

if TYPE_CHECKING:
    from requests import Response, Session

LIMIT = 32 << 20
"""Bytes of one answer. A page of a thousand runs with a hundred figures each takes about ten million."""
PIECE = 1 << 14
"""Bytes read at once: few, as a compressed answer grows up to a thousand times."""
_MARK = "_bounded_by_compress"


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
        for adapter in session.adapters.values():
            assert isinstance(adapter, HTTPAdapter)
            retry = copy.copy(adapter.max_retries)
            retry.__class__ = _closing(type(retry))
            adapter.max_retries = retry
        setattr(session, _MARK, True)
    return session


@functools.cache
def _closing(kind: type) -> type:
    """A Retry that closes the connection of an answer instead of reading the answer to its end."""

    class Closing(kind):
        def increment(self, *args: Any, response: Any = None, **more: Any) -> Any:
            if response is not None:
                response.close()
            return super().increment(*args, response=response, **more)

    return Closing
