"""The part of the Hugging Face Hub's HTTP API that the real client uses to push a model and to read it back.

Written after the client's own requests (huggingface_hub: hf_api, _commit_api, lfs, file_download): paths, bodies,
status codes and the headers X-Error-Code, X-Error-Message, X-Repo-Commit, ETag and X-Linked-Size. It checks what
the hub checks: the token, the right to write, sizes and sha256 of large files, and that a commit names only files that
were uploaded.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
import yaml

WRITER, READER = "hf_aSecretThatWrites", "hf_aSecretThatReads"
ORGANIZATION = "acme"
"""The only one that WRITER may write to; READER may read everything."""
LARGE = (".safetensors", ".onnx", ".bin")
"""What the hub's .gitattributes sends to large file storage."""


@dataclass
class Repository:
    """files: path → content of the newest commit.  commits: (message, paths added, paths removed)."""

    private: bool = False
    files: dict[str, bytes] = field(default_factory=dict)
    commits: list[tuple[str, list[str], list[str]]] = field(default_factory=list)

    @property
    def sha(self) -> str:
        return hashlib.sha1(repr((len(self.commits), sorted(self.files))).encode()).hexdigest()


class Hub:
    """A server on a free port of this machine. requests: "METHOD path" of each.  fail: the path that is answered with
    this status."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.large: dict[str, bytes] = {}
        self.requests: list[str] = []
        self.tokens: set[str | None] = set()
        self.fail: tuple[str, int] | None = None
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@contextmanager
def logged_in(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Iterator[Hub]:
    """A hub, and this process as one of somebody who may write there. The client reads its variables when it is
    imported, so they are set where it keeps them."""
    from huggingface_hub import constants

    hub = Hub()
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "ENDPOINT", hub.address)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder / "hub-cache"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(folder / "no-token"))
    monkeypatch.setenv("HF_TOKEN", WRITER)
    try:
        yield hub
    finally:
        hub.close()


class _Handler(BaseHTTPRequestHandler):
    owner: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        pass

    def do_GET(self) -> None:
        self._serve("GET")

    def do_HEAD(self) -> None:
        self._serve("HEAD")

    def do_POST(self) -> None:
        self._serve("POST")

    def do_PUT(self) -> None:
        self._serve("PUT")

    # --- routes ---------------------------------------------------------------------------------------------------

    def _serve(self, method: str) -> None:
        self.body = self._read()
        path = unquote(urlsplit(self.path).path)
        self.owner.requests.append(f"{method} {path}")
        if self.owner.fail is not None and self.owner.fail[0] in path:
            self._refuse(self.owner.fail[1], "the server is tired")
            return
        for pattern, answer in self._routes(method):
            if found := re.fullmatch(pattern, f"{method} {path}"):
                answer(*found.groups())
                return
        self._refuse(404, f"the fake hub knows no {method} {path}")

    def _read(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        parts = []
        while size := int(self.rfile.readline(), 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(parts)

    def _routes(self, method: str) -> list[tuple[str, Callable[..., None]]]:
        if method == "PUT":  # a signed address: it needs no token
            return [(r"PUT /storage/(\w+)", self._store)]
        name = r"([\w.-]+/[\w.-]+)"
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ") or None
        self.owner.tokens.add(token)
        if token not in (None, WRITER, READER):
            invalid = "Invalid credentials in Authorization header"
            return [(".*", lambda: self._refuse(401, "Invalid username or password.", message=invalid))]
        writes = lambda act: lambda name, *rest: self._writing(token, name, act, *rest)  # noqa: E731
        reads = lambda act: lambda name, *rest: self._reading(token, name, act, *rest)  # noqa: E731
        return [
            (r"POST /api/repos/create", lambda: self._create(token)),
            (r"POST /api/validate-yaml", self._validate),
            (rf"GET /api/models/{name}/auth-check/write", writes(lambda _: self._answer({}))),
            (rf"POST /api/models/{name}/preupload/main", writes(self._preupload)),
            (rf"POST /api/models/{name}/commit/main", writes(self._commit)),
            (rf"POST /{name}\.git/info/lfs/objects/batch", writes(self._batch)),
            (rf"POST /{name}/verify", writes(self._verify)),
            (rf"GET /api/models/{name}/tree/\w+", reads(self._tree)),
            (rf"GET /api/models/{name}(?:/revision/\w+)?", reads(self._info)),
            (rf"(?:GET|HEAD) /{name}/resolve/\w+/(.+)", reads(self._file)),
        ]

    def _reading(self, token: str | None, name: str, act: Callable[..., None], *rest: str) -> None:
        found = self.owner.repositories.get(name)
        if found is None or (found.private and token is None):
            self._refuse(404 if token else 401, "Repository not found", code="RepoNotFound")
        else:
            self.name, self.repository = name, found
            act(found, *rest)

    def _writing(self, token: str | None, name: str, act: Callable[..., None], *rest: str) -> None:
        def allowed(found: Repository, *rest: str) -> None:
            if token != WRITER or not name.startswith(f"{ORGANIZATION}/"):
                self._refuse(403, f"Forbidden: you don't have write access to {name}")
            else:
                act(found, *rest)

        self._reading(token, name, allowed, *rest)

    # --- answers --------------------------------------------------------------------------------------------------

    def _create(self, token: str | None) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if token != WRITER or asked["organization"] != ORGANIZATION:
            self._refuse(403, f"You don't have the rights to create a model under the namespace {name.split('/')[0]!r}")
        elif name in self.owner.repositories:
            self._answer({"error": "You already created this model repo", "url": f"{self.owner.address}/{name}"}, 409)
        else:
            private = asked.get("visibility") == "private" or asked.get("private") is True  # the client 1.8, or older
            self.owner.repositories[name] = Repository(private)
            self._answer({"url": f"{self.owner.address}/{name}", "name": name, "id": "1"})

    def _validate(self) -> None:
        head = json.loads(self.body)["content"].split("---\n")
        try:
            found = yaml.safe_load(head[1]) if len(head) > 2 and not head[0] else {}
            errors = [] if isinstance(found, dict) else ["not a mapping"]
        except yaml.YAMLError as error:
            errors = [str(error)]
        shown = [{"message": message} for message in errors]
        self._answer({"errors": shown, "warnings": []}, 400 if errors else 200)

    def _preupload(self, found: Repository) -> None:
        rows = []
        for one in json.loads(self.body)["files"]:
            content = found.files.get(one["path"])
            large = one["path"].endswith(LARGE)
            rows.append(
                {
                    "path": one["path"],
                    "uploadMode": "lfs" if large else "regular",
                    "shouldIgnore": False,
                    "oid": None if content is None else _oid(content, large),
                }
            )
        self._answer({"files": rows})

    def _batch(self, _: Repository) -> None:
        asked = json.loads(self.body)
        assert asked["operation"] == "upload"
        assert asked["hash_algo"] == "sha256"
        rows = []
        for one in asked["objects"]:
            row = {"oid": one["oid"], "size": one["size"]}
            if one["oid"] not in self.owner.large:
                upload = {"href": f"{self.owner.address}/storage/{one['oid']}"}
                row["actions"] = {"upload": upload, "verify": {"href": f"{self.owner.address}/{self.name}/verify"}}
            rows.append(row)
        self._answer({"transfer": "basic", "objects": rows})

    def _store(self, oid: str) -> None:
        if hashlib.sha256(self.body).hexdigest() != oid:
            self._refuse(400, "the content does not have this sha256")
        else:
            self.owner.large[oid] = self.body
            self._answer({})

    def _verify(self, _: Repository) -> None:
        asked = json.loads(self.body)
        held = self.owner.large.get(asked["oid"])
        if held is None or len(held) != asked["size"]:
            self._refuse(400, "the object is not there")
        else:
            self._answer({})

    def _commit(self, found: Repository) -> None:
        rows = [json.loads(line) for line in self.body.splitlines()]
        assert rows[0]["key"] == "header"
        added, removed = {}, []
        for row in rows[1:]:
            value = row["value"]
            if row["key"] == "file":
                assert value["encoding"] == "base64"
                added[value["path"]] = base64.b64decode(value["content"])
            elif row["key"] == "lfsFile":
                if value["oid"] not in self.owner.large:
                    self._refuse(400, f"the large file {value['path']} was not uploaded")
                    return
                added[value["path"]] = self.owner.large[value["oid"]]
            else:
                assert row["key"] == "deletedFile"
                removed.append(value["path"])
        found.files = {path: content for path, content in found.files.items() if path not in removed} | added
        found.commits.append((rows[0]["value"]["summary"], sorted(added), sorted(removed)))
        url = f"{self.owner.address}/{self.name}/commit/{found.sha}"
        self._answer({"success": True, "commitOid": found.sha, "commitUrl": url})

    def _info(self, found: Repository) -> None:
        files = [{"rfilename": path} for path in sorted(found.files)]
        self._answer({"id": self.name, "private": found.private, "sha": found.sha, "siblings": files})

    def _tree(self, found: Repository) -> None:
        rows = []
        for path, content in sorted(found.files.items()):
            row = {"type": "file", "path": path, "size": len(content), "oid": _oid(content, large=False)}
            if path.endswith(LARGE):
                row["lfs"] = {"oid": _oid(content, large=True), "size": len(content), "pointerSize": 130}
            rows.append(row)
        self._answer(rows)

    def _file(self, found: Repository, path: str) -> None:
        if path not in found.files:
            self._refuse(404, "Entry not found", code="EntryNotFound")
            return
        content = found.files[path]
        oid = _oid(content, path.endswith(LARGE))
        self._send(200, content, {"ETag": f'"{oid}"', "X-Repo-Commit": found.sha, "X-Linked-Size": str(len(content))})

    # --- replies --------------------------------------------------------------------------------------------------

    def _answer(self, content: Any, status: int = 200) -> None:
        self._send(status, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _refuse(self, status: int, error: str, *, code: str = "", message: str = "") -> None:
        headers = {"Content-Type": "application/json", "X-Error-Message": message or error}
        self._send(status, json.dumps({"error": error}).encode(), headers | ({"X-Error-Code": code} if code else {}))

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _oid(content: bytes, large: bool) -> str:
    """sha256 of a large file, else git's id of a blob."""
    if large:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
