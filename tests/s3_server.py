"""A server on this machine that speaks the S3 protocol: `moto[server]`, which is not part of the extra `dev`."""

from __future__ import annotations

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "me",
    "AWS_SECRET_ACCESS_KEY": "canary",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_MAX_ATTEMPTS": "1",
}
"""What its clients need; boto3 and pyarrow read it."""


def require_moto() -> None:
    """Skip the test, by name, where a package is missing."""
    for package in ("boto3", "moto", "flask_cors"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"the package {package} is not installed")


class S3:
    """A store of files that a test takes away and brings back, empty. bucket: the one that it has."""

    def __init__(self, bucket: str = "runs") -> None:
        self.bucket = bucket
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        import boto3
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer("127.0.0.1", self.port, verbose=False)
        self._server.start()
        self.client: Any = boto3.client("s3", endpoint_url=self.address)
        self.client.create_bucket(Bucket=self.bucket)

    def stop(self) -> None:
        self._server.stop()

    def names(self) -> list[str]:
        """Last parts of the names of what it holds."""
        return sorted(
            one["Key"].rpartition("/")[2] for one in self.client.list_objects(Bucket=self.bucket).get("Contents", [])
        )

    def upload(self, source: Path, key: str) -> str:
        """A file, or a folder's files, under `key`; the address as `compress` takes it."""
        for file in [source] if source.is_file() else sorted(one for one in source.rglob("*") if one.is_file()):
            name = key if file == source else f"{key}/{file.relative_to(source)}"
            self.client.put_object(Bucket=self.bucket, Key=name, Body=file.read_bytes())
        return self.name(key)

    def name(self, key: str, bucket: str | None = None) -> str:
        """The address of a key as `compress` takes it."""
        return f"s3://{bucket or self.bucket}/{key}?endpoint_override=127.0.0.1:{self.port}&scheme=http"
