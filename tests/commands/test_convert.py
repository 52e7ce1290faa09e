"""`compress convert`: pickled weights become safetensors, or one line says why not, and nothing is left behind."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from warm_children import WarmChildren

import compress
from compress.cli.main import main
from compress.commands import convert
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import load_model, save_model
from compress.storage import limited_child


@pytest.fixture(scope="module")
def warm_children() -> Iterator[WarmChildren]:
    running = WarmChildren()
    yield running
    running.close()


@pytest.fixture
def warm(warm_children: WarmChildren, monkeypatch: pytest.MonkeyPatch) -> None:
    """Children are forked: some of these tests are without it, so that the real ones are tested too."""
    monkeypatch.setattr(limited_child, "run", warm_children.run)


@pytest.fixture
def old(tiny_model: Model, toy_tokenizer_files: dict[str, bytes], tmp_path: Path) -> Path:
    """A stock folder as programs of 2020 left it."""
    folder = save_model(tmp_path / "old", tiny_model, tokenizer_files=toy_tokenizer_files)
    tensors = load_file(folder / "model.safetensors")
    torch.save(tensors, folder / "pytorch_model.bin")
    for name in ("model.safetensors", "manifest.json", "compress.json"):
        (folder / name).unlink()
    return folder


def held(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tensors_of(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "pytorch_model.bin", weights_only=True)


def rejected(folder: Path, capsys: pytest.CaptureFixture[str], code: int = 2) -> str:
    """The line by which the command rejects a folder; it wrote nothing."""
    before, beside = held(folder), sorted(os.listdir(folder.parent))
    assert main(["convert", str(folder), "--output", str(folder.parent / "new")]) == code
    assert held(folder) == before
    assert sorted(os.listdir(folder.parent)) == beside
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1, lines
    return lines[0]


def test_a_folder_is_converted_whole_and_the_original_stays(
    old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=f"compress convert {old} --output {old}-safetensors"):
        load_model(old)
    (old / "2_Dense").mkdir()
    torch.save({"linear.weight": torch.eye(3)}, old / "2_Dense" / "pytorch_model.bin")
    (old / "2_Dense" / "config.json").write_text("{}")
    before = held(old)
    assert main(["convert", str(old), "--output", str(tmp_path / "new"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    wanted = tensors_of(old)
    assert told["folder"] == str(tmp_path / "new")
    assert told["tensors"] == len(wanted) + 1
    assert held(old) == before
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert torch.equal(load_file(tmp_path / "new" / "2_Dense" / "model.safetensors")["linear.weight"], torch.eye(3))
    new = held(tmp_path / "new")
    assert all(new[name] == data for name, data in before.items() if not name.endswith(".bin"))
    assert not any(name.endswith(".bin") for name in new)
    load_model(tmp_path / "new")


@pytest.mark.thorough
@pytest.mark.usefixtures("warm")
def test_shards_shared_tensors_and_wrappers(old: Path, tmp_path: Path) -> None:
    wanted = tensors_of(old)
    whole = torch.zeros(2, *next(iter(wanted.values())).shape)
    first, *others = wanted
    whole[0] = wanted[first]
    parts: list[dict[str, Any]] = [{first: whole[0]}, {"state_dict": {name: wanted[name] for name in others}}]
    (old / "pytorch_model.bin").unlink()
    for number, part in enumerate(parts):
        torch.save(part, old / f"pytorch_model-{number}.bin")
    table = {first: "pytorch_model-0.bin", **dict.fromkeys(others, "pytorch_model-1.bin")}
    (old / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": table}))
    result = compress.convert(old, output=tmp_path / "new", quiet=True)
    assert result["tensors"] == len(wanted)
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert all(torch.equal(found[name], wanted[name]) for name in wanted)
    assert not (tmp_path / "new" / "pytorch_model.bin.index.json").exists()


@pytest.mark.usefixtures("warm")
def test_tied_tensors_are_written_under_each_name(old: Path, tmp_path: Path) -> None:
    tensors = tensors_of(old)
    tied = "bert.embeddings.word_embeddings.weight"
    tensors["cls.predictions.decoder.weight"] = tensors[tied]
    torch.save(tensors, old / "pytorch_model.bin")
    compress.convert(old, output=tmp_path / "new", quiet=True)
    found = load_file(tmp_path / "new" / "model.safetensors")
    assert torch.equal(found["cls.predictions.decoder.weight"], found[tied])


class Evil:
    """What a hostile pickle does when it is read."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.mkdir, (str(self.target),))


@pytest.mark.usefixtures("warm")
def test_a_hostile_pickle_runs_nothing(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for protocol in (2, 4):
        data = io.BytesIO()
        torch.save({"a": Evil(tmp_path / "broken-in")}, data, pickle_protocol=protocol)
        (old / "pytorch_model.bin").write_bytes(data.getvalue())
        line = rejected(old, capsys)
        assert "pytorch_model.bin: the pickled weights cannot be converted: it holds more than tensors" in line
        assert "weights_only" not in line
    (old / "pytorch_model.bin").write_bytes(pickle.dumps(Evil(tmp_path / "broken-in")))
    assert "cannot be converted" in rejected(old, capsys)
    assert not (tmp_path / "broken-in").exists()


RARE = ("empty", "text", "list", "nothing")


@pytest.mark.parametrize(
    "damage", ["cut", "number", *(pytest.param(name, marks=pytest.mark.thorough) for name in RARE)]
)
@pytest.mark.usefixtures("warm")
def test_damaged_files(damage: str, old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = old / "pytorch_model.bin"
    data = file.read_bytes()
    if damage in ("list", "number", "nothing"):
        torch.save({"list": [torch.ones(2)], "number": {"a": 3}, "nothing": {}}[damage], file)
    else:
        file.write_bytes({"cut": data[: len(data) // 2], "empty": b"", "text": b"version https://git-lfs\n"}[damage])
    assert "the pickled weights cannot be converted: " in rejected(old, capsys)


@pytest.mark.thorough
def test_a_small_file_that_becomes_large_is_stopped(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "MEMORY", 64 << 20)
    torch.save({"a": torch.zeros(1).expand(1 << 30)}, old / "pytorch_model.bin")
    assert "takes more than" in rejected(old, capsys, 5)
    with zipfile.ZipFile(old / "pytorch_model.bin") as plain:
        parts = {name: plain.read(name) for name in plain.namelist()}
    with zipfile.ZipFile(old / "pytorch_model.bin", "w", zipfile.ZIP_DEFLATED) as packed:
        for name, data in parts.items():
            packed.writestr(name, b"\0" * (128 << 20) if name.endswith("data/0") else data)
    assert "cannot be converted" in rejected(old, capsys, 5)


def test_too_large_files_are_not_begun(
    old: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert, "MOST_BYTES", 100)
    monkeypatch.setattr(limited_child, "run", None)
    assert "the pickled files are too large" in rejected(old, capsys, 5)


def test_what_is_there_is_not_overwritten(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "mine").write_text("x")
    assert "exists already" in rejected(old, capsys, 3)
    (tmp_path / "new" / "mine").unlink()
    (tmp_path / "new").rmdir()
    assert main(["convert", str(old)]) == 2
    assert "an output folder is required" in capsys.readouterr().err


@pytest.mark.usefixtures("warm")
def test_folders_without_pickled_weights(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compress.convert(old, output=tmp_path / "made", quiet=True)
    assert "there is nothing to convert: model.safetensors is there" in rejected(tmp_path / "made", capsys)
    (old / "pytorch_model.bin").unlink()
    assert "there is nothing to convert: looked for pytorch_model.bin" in rejected(old, capsys)
    (old / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "../../etc/passwd"}}')
    assert "invalid file name '../../etc/passwd'" in rejected(old, capsys)


@pytest.mark.parametrize(
    "deed",
    ["import socket; socket.socket()", "import os; os.system('true')", "import subprocess; subprocess.run(['true'])",
     "import socket; socket.getaddrinfo('localhost', 80)", "import os; os.fork()"],
)  # fmt: skip
def test_a_child_reaches_neither_network_nor_other_processes(deed: str) -> None:
    """Also what has been imported before cannot."""
    script = f"import os, socket, subprocess\nsys.addaudithook(refuse)\ntry:\n    {deed}\n"
    script += "except PermissionError as error:\n    print(error)\n"
    done = limited_child.run(script, {}, seconds=5, memory=1 << 30, wait=60)
    assert done.code == 0
    assert done.said.startswith("not allowed here: ")


def test_a_child_has_limits() -> None:
    slow = limited_child.run("while True: pass", {}, seconds=1, memory=None, wait=120)
    assert slow.code is not None
    assert slow.code < 0
    large = limited_child.run("limit_memory(1)\nx = bytearray(1 << 30)", {}, seconds=5, memory=1 << 28, wait=120)
    assert large.code not in (0, None)
    script = "open(given['path'], 'wb').write(b'x' * 5000)"
    assert limited_child.run(script, {"path": os.devnull}, seconds=5, memory=None, wait=60).code == 0
