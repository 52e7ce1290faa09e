"""Files of an object store, read through pyarrow as if they were here: `s3://bucket/key` in place of a path.

Keys and region come from the environment and the files of AWS's own tools. Another store is named by the query:
`s3://bucket/key?endpoint_override=HOST:PORT&scheme=http`, or by AWS_ENDPOINT_URL, which no record of a run keeps.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote

from compress.errors import UserError, nearest, printable
from compress.storage.sent import find_copy

SCHEME = "s3://"
_BUFFER = 1 << 20
"""Bytes that are read at once: each reading is a request."""
_DENIED = (
    "ACCESS_DENIED",
    "INVALID_ACCESS_KEY_ID",
    "SIGNATURE_DOES_NOT_MATCH",
    "INVALID_CLIENT_TOKEN_ID",
    "ExpiredToken",
    "InvalidToken",
    "HTTP status 401",
    "HTTP status 403",
)
"""What pyarrow's errors contain where keys are missing, wrong or out of date."""
_UNREACHABLE = ("NETWORK_CONNECTION", "curlCode", "REQUEST_TIMEOUT", "timed out")
"""And where the network or the server is away."""


@dataclass(frozen=True)
class Stat:
    """What is known of a file without reading it: bytes, and the time of its last change in ns."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True)
class RemotePath:
    """A file or folder of a store. key: with the bucket.  query: of its address."""

    key: str
    query: str = ""

    @classmethod
    def parse(cls, address: str) -> RemotePath:
        """Raises UserError for an address with a password, which would be printed and written to files, and for one
        without a bucket."""
        key, _, query = address.removeprefix(SCHEME).partition("?")
        bucket = key.partition("/")[0]
        in_bucket = "@" in bucket or ":" in bucket  # a secret key may contain a slash
        if in_bucket or "@" in unquote(query):
            shown = key.partition("@")[2] if in_bucket else key
            do = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
            raise UserError("the address contains keys", where=SCHEME + shown, do=do)
        if not bucket:
            raise UserError("the address names no bucket", where=printable(address, 80), do="write s3://BUCKET/KEY")
        return cls(key.strip("/"), query)

    def __str__(self) -> str:
        return SCHEME + self.key + (f"?{self.query}" if self.query else "")

    @property
    def shown(self) -> str:
        """The address without its query, as notes, cards and pages show it."""
        return SCHEME + self.key

    @property
    def name(self) -> str:
        return PurePosixPath(self.key).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.key).suffix

    def open(self, mode: str = "rb") -> io.BufferedReader:
        """The file for reading; of another mode nothing is known here. Raises OSError as `Path.open`."""
        assert mode == "rb"
        return io.BufferedReader(self._system.open_input_file(self.key), _BUFFER)

    def stat(self) -> Stat:
        """Raises FileNotFoundError where no file is."""
        info = self._info
        if not info.is_file:
            raise FileNotFoundError(2, "no such file", str(self))
        return Stat(info.size, info.mtime_ns or 0)

    def identify(self) -> tuple[int, str]:
        """(bytes, what changes with the content: the store's ETag, or the time of the last change where it has none).
        Raises OSError."""
        with self._system.open_input_file(self.key) as file:
            size, tag = file.size(), file.metadata().get(b"ETag")
        return size, tag.decode() if tag else str(self.stat().st_mtime_ns)

    def exists(self) -> bool:
        """Whether a file or folder is there. Raises UserError where the store does not answer."""
        return self._info.type.name != "NotFound"

    def require_there(self) -> None:
        """Raise UserError, with the nearest name, where no file or folder is. Raises as `exists`, too."""
        if not self.exists():
            raise self._make_missing_error()

    def is_dir(self) -> bool:
        """Whether files are below it. Raises as `exists`."""
        return self._info.type.name == "Directory"

    def list_below(self) -> list[RemotePath]:
        """All files below the folder. Raises as `exists`."""
        try:
            return [RemotePath(info.path, self.query) for info in self._list(self.key, recursive=True) if info.is_file]
        except OSError as error:
            raise self.explain(error) from error

    def explain(self, error: OSError) -> UserError:
        """What is said where the store does not give what is asked of it."""
        text = str(error)
        why, where = printable(text.splitlines()[0].rstrip("."), 200) if text else type(error).__name__, str(self)
        bucket = self.key.partition("/")[0]
        if "NO_SUCH_BUCKET" in text or f"Bucket '{bucket}' not found" in text:
            return UserError(f"no such bucket '{bucket}'", where=where, do="check its name and the endpoint")
        if isinstance(error, FileNotFoundError):
            return UserError("no such file or folder in the store", where=where)
        if any(sign in text for sign in _DENIED):
            do = "check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_SESSION_TOKEN, or AWS_PROFILE"
            return UserError("the store denies access", where=where, why=why, do=do)
        if any(sign in text for sign in _UNREACHABLE):
            do = "check the network and the endpoint (endpoint_override=HOST:PORT)"
            return UserError("the store cannot be reached", where=where, why=why, do=do)
        return UserError("the store does not answer as expected", where=where, why=why)

    def _make_missing_error(self) -> UserError:
        bucket, _, key = self.key.partition("/")
        folder, _, name = self.key.rpartition("/")
        names: Sequence[str] = ()
        with suppress(OSError):  # who may read a file may not be allowed to list others
            if self._system.get_file_info(bucket).type.name == "NotFound":
                return UserError(f"no such bucket '{bucket}'", where=str(self), do="check its name and the endpoint")
            names = [info.base_name for info in self._list(folder, recursive=False)] if key else []
        near = nearest(name, names)
        do = None if near is None else f"did you mean {SCHEME}{folder}/{near}?"
        return UserError("no such file or folder in the store", where=str(self), do=do)

    def _list(self, folder: str, *, recursive: bool) -> list[Any]:
        from pyarrow.fs import FileSelector

        return self._system.get_file_info(FileSelector(folder, recursive=recursive))

    @property
    def _system(self) -> Any:
        return connect(self.key.partition("/")[0], self.query)

    @property
    def _info(self) -> Any:
        try:
            return self._system.get_file_info(self.key)
        except OSError as error:
            raise self.explain(error) from error


Place = Path | RemotePath
"""Where rows are read from."""


def parse_place(name: str) -> Place:
    """A path, or the copy that was sent to this machine, or an address of a store."""
    return RemotePath.parse(name) if name.startswith(SCHEME) else find_copy(Path(name))


@cache
def connect(bucket: str, query: str) -> Any:
    """The file system of a bucket; its paths begin with the bucket. Raises UserError for an address that pyarrow does
    not accept."""
    import pyarrow as pa
    from pyarrow import fs

    address = f"{SCHEME}{bucket}" + (f"?{query}" if query else "")
    try:
        return fs.FileSystem.from_uri(address)[0]
    except OSError as error:
        raise RemotePath(bucket, query).explain(error) from error
    except (pa.ArrowException, ValueError) as error:
        raise UserError("the store cannot be opened", where=address, why=str(error).splitlines()[0]) from error
