"""Files of an object store, read through pyarrow as if they were here: `s3://bucket/key` in place of a path.

Keys and region come from the environment and the files of AWS's own tools. Another store is named by the query:
`s3://bucket/key?endpoint_override=HOST:PORT&scheme=http`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

from compress.errors import UserError

SCHEME = "s3://"
_BUFFER = 1 << 20
"""Bytes that are read at once: each reading is a request."""


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
        """Raises UserError for an address with a password, which would be printed and written to files."""
        key, _, query = address.removeprefix(SCHEME).partition("?")
        if "@" in key.partition("/")[0]:
            do = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
            raise UserError("the address contains keys", where=SCHEME + key.partition("@")[2], do=do)
        return cls(key.strip("/"), query)

    def __str__(self) -> str:
        return SCHEME + self.key + (f"?{self.query}" if self.query else "")

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

    def exists(self) -> bool:
        """Whether a file or folder is there. Raises UserError where the store does not answer."""
        return self._info.type.name != "NotFound"

    def is_dir(self) -> bool:
        """Whether files are below it. Raises as `exists`."""
        return self._info.type.name == "Directory"

    def list_below(self) -> list[RemotePath]:
        """All files below the folder."""
        from pyarrow.fs import FileSelector

        found = self._system.get_file_info(FileSelector(self.key, recursive=True))
        return [RemotePath(info.path, self.query) for info in found if info.is_file]

    @property
    def _system(self) -> Any:
        return connect(self.key.partition("/")[0], self.query)

    @property
    def _info(self) -> Any:
        try:
            return self._system.get_file_info(self.key)
        except OSError as error:
            raise UserError("the store does not answer", where=str(self), why=str(error)) from error


Place = Path | RemotePath
"""Where rows are read from."""


def parse_place(name: str) -> Place:
    """A path, or an address of a store."""
    return RemotePath.parse(name) if name.startswith(SCHEME) else Path(name)


@cache
def connect(bucket: str, query: str) -> Any:
    """The file system of a bucket; its paths begin with the bucket. Raises UserError for an address that pyarrow does
    not accept."""
    import pyarrow as pa
    from pyarrow import fs

    address = f"{SCHEME}{bucket}" + (f"?{query}" if query else "")
    try:
        return fs.FileSystem.from_uri(address)[0]
    except (pa.ArrowException, OSError, ValueError) as error:
        raise UserError("the store cannot be opened", where=address, why=str(error).splitlines()[0]) from error
