"""What is sent to machines that do not see it, as far as no cluster is needed: who gets what, and what is refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.console import Console
from compress.errors import ExitCode, UserError
from compress.run.jobs import on_ray, shipping
from compress.run.jobs.job import read_failure
from compress.run.jobs.shipping import Node, Sent, open_sent, send
from compress.storage.parcels import plan_parcels


class FakeRay:
    """Machines are folders: the cache of each. put_count: contents in the object store.  received: who was given what.
    got_count: contents that left the store."""

    exceptions = SimpleNamespace(RayError=LookupError)

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.put_count, self.got_count = monkeypatch, 0, 0
        self.received: list[tuple[str, list[str]]] = []

    def put(self, content: Any) -> Any:
        self.put_count += 1
        return content

    def get(self, answer: Any) -> Any:
        self.got_count += isinstance(answer, dict)
        return answer

    def remote(self, **_: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: SimpleNamespace(
            options=lambda scheduling_strategy: SimpleNamespace(
                remote=lambda *given: self._run(scheduling_strategy, function, *given)
            )
        )

    def _run(self, place: Path, function: Callable[..., Any], sent: Sent) -> Any:
        self.received.append((place.name, sorted(sent.info.places)))
        self.monkeypatch.setenv("COMPRESS_CACHE", str(place))
        return function(sent)


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    monkeypatch.setenv("COMPRESS_CACHE", "unused")
    made = FakeRay(monkeypatch)
    monkeypatch.setitem(sys.modules, "ray", made)
    return made


def nodes(folder: Path, *hosts: str) -> list[Node]:
    return [Node(host, folder / host) for host in hosts]


def write(*files: Path, size: int = 2000) -> list[str]:
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    return [str(file) for file in files]


def test_each_machine_gets_what_it_lacks_and_nothing_twice(
    tmp_path: Path, ray: FakeRay, capsys: pytest.CaptureFixture[str]
) -> None:
    model, rows = write(tmp_path / "model/config.json", tmp_path / "rows.jsonl")
    model = str(Path(model).parent)
    first, second = nodes(tmp_path, "first", "second")
    missing: Sequence[tuple[Node, list[str]]] = [(first, [model, rows]), (second, [model])]
    sent = send(ray, missing, Console())
    assert ray.received == [("first", [model]), ("second", [model]), ("first", [rows])]
    assert (ray.put_count, ray.got_count) == (2, 3), "once for all machines"
    assert [sorted(one.info.places) for one in sent] == [[model], [rows]]
    err = capsys.readouterr().err
    assert f"sent {model} (2.0 kB) to 2 nodes" in err
    assert f"sent {rows} (2.0 kB) to 1 node\n" in err
    send(ray, missing, Console())
    assert "sent" not in capsys.readouterr().err
    assert ray.got_count == 3, "both have kept a copy"
    assert send(ray, [], Console()) == []


def test_what_is_large_is_an_error_before_anything_is_read(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipping, "MOST_BYTES", 3000)
    small, large = write(tmp_path / "a/small", size=1500) + write(tmp_path / "b/large", size=1600)
    first, second = nodes(tmp_path, "first", "second")
    send(ray, [(first, [small]), (second, [small])], Console())
    ray.put_count = 0
    with pytest.raises(UserError) as found:
        send(ray, [(first, [small]), (second, [small, large])], Console())
    assert found.value.line() == (
        f"--on: node second does not see {large}: 3.1 kB would have to be sent, and the limit is 3.0 kB; "
        "use a folder that all nodes share for the working folder, --output and what the runs read"
    )
    assert found.value.code == ExitCode.ENVIRONMENT
    assert ray.put_count == 0


def test_a_machine_that_cannot_keep_a_copy_is_named(tmp_path: Path, ray: FakeRay) -> None:
    (rows,) = write(tmp_path / "rows.jsonl")
    (tmp_path / "full").write_text("a file where the cache folder would be")
    with pytest.raises(UserError, match=rf"^--on: node full could not keep a copy of {rows}: ") as found:
        send(ray, [(node, [rows]) for node in nodes(tmp_path, "full")], Console())
    assert found.value.code == ExitCode.RESOURCES


def test_a_full_object_store_is_reported(tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(content: Any) -> None:
        raise LookupError("the object store is full\nmore")

    monkeypatch.setattr(ray, "put", fail)
    (rows,) = write(tmp_path / "rows.jsonl")
    with pytest.raises(UserError, match=rf"{rows} could not be sent to the nodes: the object store is full; free"):
        send(ray, [(node, [rows]) for node in nodes(tmp_path, "first")], Console())


def pack(path: str) -> Sent:
    info, content = plan_parcels([path])[0].pack()
    return Sent(info, content)


def test_a_task_finds_copies_of_what_its_machine_lacks(
    tmp_path: Path, ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMPRESS_CACHE", str(tmp_path / "cache"))
    here, gone = write(tmp_path / "here", tmp_path / "b/gone")
    sent = [pack(here), pack(gone)]
    Path(gone).unlink()
    copies = open_sent(sent)
    assert copies.keys() == {gone}
    assert Path(copies[gone]).read_bytes() == bytes(2000)


def test_a_task_that_cannot_keep_a_copy_leaves_its_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(sent: Any) -> None:
        raise UserError("the disk is full", where="/cache", code=ExitCode.RESOURCES)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(on_ray, "open_sent", fail)
    packed = {"kind": "rows", "job": {"folder": str(tmp_path / "job")}}
    given = {"folder": str(tmp_path), "packed": packed, "log": "log", "threads": 1, "environ": {}, "sent": []}
    assert on_ray.run_task(given) == (ExitCode.RESOURCES, False)
    left = read_failure(tmp_path / "job")
    assert left is not None
    assert left.line() == "/cache: the disk is full"
