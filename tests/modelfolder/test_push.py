"""Pushing a model folder to the hub: the real client against a server on this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hub_server import READER, WRITER, Hub, Repository, logged_in
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from compress.cli.main import main
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError
from compress.modelfolder import private, vocabulary
from compress.modelfolder.open import CONFIG
from compress.modelfolder.push import HubRepository, Pushed, list_files, parse_repository, push_and_print
from compress.modelfolder.resolve import PATTERNS, resolve
from compress.onnx import model_file

NAME = "acme/small"
FILES = {
    "README.md": b"---\nlibrary_name: transformers\ntags: [compress]\n---\n\n# small\n",
    "config.json": b'{"model_type": "bert"}',
    "model.safetensors": bytes(range(256)) * 20,
    "tokenizer.json": b"{}",
    "1_Pooling/config.json": b"{}",
    ".manifest.json": b"{}",
}
SHOWN = sorted(name for name in FILES if not name.startswith("."))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with logged_in(monkeypatch, tmp_path) as made:
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    target = tmp_path / "student"
    for name, content in FILES.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)
    return target


def error_of(act: object) -> UserError:
    with pytest.raises(UserError) as caught:
        act()  # type: ignore[operator]
    line = str(caught.value)
    assert "\n" not in line
    assert WRITER not in line
    assert READER not in line
    return caught.value


# --- names ------------------------------------------------------------------------------------------------------


def test_a_repository_is_named_with_its_organization() -> None:
    assert parse_repository("hf:acme/small-v1.2") == "acme/small-v1.2"


@pytest.mark.parametrize("text", ["acme/small", "hf:small", "hf:a/b/c", "hf:", "hf:acme/", "hf:acme/a b", "hf:-a/b"])
def test_other_names_are_rejected(text: str) -> None:
    assert "not the name of a hub repository" in str(error_of(lambda: parse_repository(text)))


def test_a_revision_is_rejected() -> None:
    assert "models are pushed to the main branch" in str(error_of(lambda: parse_repository("hf:acme/small@v2")))


# --- pushing ----------------------------------------------------------------------------------------------------


def test_a_folder_becomes_one_commit(hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pushed = HubRepository(NAME).push(folder, Console())
    made = hub.repositories[NAME]
    assert made.files == {name: FILES[name] for name in SHOWN}  # hidden files stay here
    assert not made.private
    assert [(added, removed) for _, added, removed in made.commits] == [(SHOWN, [])]
    assert made.commits[0][0].startswith(f"Push {folder.parent.name} with compress ")
    size = sum(len(FILES[name]) for name in SHOWN)
    assert pushed == Pushed(NAME, f"{hub.address}/{NAME}", made.sha, len(SHOWN), size)
    told = capsys.readouterr()
    assert told.out == f"pushed   {hub.address}/{NAME}\n"
    assert WRITER not in told.err + told.out


def test_a_later_push_replaces_the_model_and_keeps_other_files(hub: Hub, folder: Path) -> None:
    gone = ["compress.safetensors", "model.onnx", "onnx.json", "onnx/model_quantized.onnx"]
    old = {**dict.fromkeys(gone, b"old"), "LICENSE": b"MIT", "onnx/model_fp16.onnx": b"1", "results.csv": b"1"}
    hub.repositories[NAME] = Repository(files=dict(old))
    HubRepository(NAME).push(folder, Console(quiet=True), "int8")
    made = hub.repositories[NAME]
    assert sorted(made.files) == sorted([*SHOWN, "LICENSE", "onnx/model_fp16.onnx", "results.csv"])
    assert made.commits == [("int8", SHOWN, gone)]


def test_a_downloaded_model_is_computed_by_its_file() -> None:
    """Without the record of the export, and with another fingerprint, an int8 model was simulated in torch."""
    names = [*vocabulary.FILES, private.FILE, CONFIG, model_file.FILE, model_file.RECORD]
    names += [f"stage-1/{name}" for name in names]
    assert list(filter_repo_objects(names, allow_patterns=list(PATTERNS))) == names


def test_large_files_that_are_there_are_not_sent_again(hub: Hub, folder: Path) -> None:
    HubRepository(NAME).push(folder, Console(quiet=True))
    (folder / "config.json").write_bytes(b'{"model_type": "roberta"}')
    hub.requests.clear()
    HubRepository(NAME).push(folder, Console(quiet=True))
    assert hub.repositories[NAME].files["config.json"] == b'{"model_type": "roberta"}'
    assert not [line for line in hub.requests if line.startswith("PUT")]


def test_a_private_repository_is_made(hub: Hub, folder: Path) -> None:
    HubRepository(NAME, private=True).push(folder, Console(quiet=True))
    assert hub.repositories[NAME].private
    HubRepository(NAME).push(folder, Console(quiet=True))
    assert hub.repositories[NAME].private


def test_a_private_push_never_ends_in_a_public_repository(hub: Hub, folder: Path) -> None:
    hub.repositories[NAME] = Repository()
    error = error_of(lambda: HubRepository(NAME, private=True).push(folder, Console(quiet=True)))
    assert "the repository is public" in str(error)
    assert error.code == ExitCode.REFUSED
    assert hub.repositories[NAME].files == {}


def test_what_was_pushed_is_read_by_its_name(hub: Hub, folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"graph")
    HubRepository(NAME).push(folder, Console(quiet=True))
    found = resolve(f"hf:{NAME}")
    names = [*SHOWN, "model.onnx"]
    assert {name: (found / name).read_bytes() for name in list_files(found)} == {
        name: (folder / name).read_bytes() for name in names
    }


# --- failures ---------------------------------------------------------------------------------------------------


def pushing(folder: Path, name: str = NAME) -> UserError:
    """The error of a push; the folder is as it was, and the error says how to push it later."""
    before = {name: (folder / name).read_bytes() for name in FILES}
    error = error_of(lambda: HubRepository(name).push(folder, Console(quiet=True)))
    assert {name: (folder / name).read_bytes() for name in FILES} == before
    assert f"the model is in {folder}; push it with: compress push {folder} hf:{name}" in str(error)
    return error


def test_no_token(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    error = pushing(folder)
    assert "there is no token of the hub; log in with `hf auth login`, or set HF_TOKEN" in str(error)
    assert error.code == ExitCode.ENVIRONMENT
    assert hub.requests == []


def test_a_token_that_is_not_valid(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    error = pushing(folder)
    assert "the hub does not accept the token" in str(error)
    assert "hf_expired" not in str(error)
    assert error.code == ExitCode.ENVIRONMENT


@pytest.mark.parametrize("exists", [True, False])
def test_no_permission(hub: Hub, folder: Path, exists: bool) -> None:
    if exists:
        hub.repositories["other/small"] = Repository()
    error = pushing(folder, "other/small")
    assert "the token may not write there: " in str(error)
    assert error.code == ExitCode.REFUSED


def test_a_token_that_only_reads(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", READER)
    assert "the token may not write there: " in str(pushing(folder))
    assert hub.repositories == {}


def test_no_network(hub: Hub, folder: Path) -> None:
    hub.close()
    error = pushing(folder)
    assert "the hub cannot be reached: " in str(error)
    assert error.code == ExitCode.ENVIRONMENT


def test_offline(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in str(pushing(folder))


@pytest.mark.parametrize("path", ["preupload", "/commit/"])
def test_a_refused_upload(hub: Hub, folder: Path, path: str) -> None:
    hub.fail = (path, 422)
    error = pushing(folder)
    assert "the hub answered: the server is tired" in str(error)
    assert hub.repositories[NAME].files == {}
    hub.fail = None
    HubRepository(NAME).push(folder, Console(quiet=True))
    assert sorted(hub.repositories[NAME].files) == SHOWN


def test_a_card_with_a_broken_head(hub: Hub, folder: Path) -> None:
    (folder / "README.md").write_bytes(b"---\n: [\n---\n")
    error = error_of(lambda: HubRepository(NAME).push(folder, Console(quiet=True)))
    assert "Invalid metadata in README.md" in str(error)


def test_an_interrupt_says_how_to_go_on(hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("huggingface_hub.HfApi.upload_folder", interrupted)
    with pytest.raises(Stopped) as caught:
        HubRepository(NAME, private=True).push(folder, Console(quiet=True))
    assert caught.value.resume == f"compress push {folder} hf:{NAME} --private"


# --- before a run -----------------------------------------------------------------------------------------------


def test_what_would_fail_is_known_before_the_run(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    assert HubRepository.requested(RunOptions()) is None
    assert HubRepository.requested(RunOptions(push=NAME, dry_run=True)) is None
    assert hub.requests == []
    assert HubRepository.requested(RunOptions(push=NAME, push_private=True)) == HubRepository(NAME, private=True)
    assert hub.repositories == {}
    monkeypatch.setenv("HF_TOKEN", "hf_expired")
    error = error_of(lambda: HubRepository.requested(RunOptions(push=NAME)))
    assert "the model cannot be pushed: the hub does not accept the token" in str(error)
    assert "remove --push and push the model later" in str(error)


def test_the_document_is_printed_when_the_push_fails(
    hub: Hub, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(quiet=True, json=True)
    push_and_print(console, {"model": 1}, folder, HubRepository(NAME))
    assert json.loads(capsys.readouterr().out)["pushed"]["repository"] == NAME
    with pytest.raises(UserError):
        push_and_print(console, {"model": 1}, folder, HubRepository("other/small"))
    assert json.loads(capsys.readouterr().out) == {"model": 1}
    push_and_print(console, {"model": 1}, folder, None)
    assert json.loads(capsys.readouterr().out) == {"model": 1}


# --- commands ---------------------------------------------------------------------------------------------------

TRAINS = ("distill", "finetune", "pretrain", "quantize", "prune-layers", "prune-width", "prune-vocab", "share")
WRITES = (*TRAINS, "factorize", "sparsify", "run", "fit", "export", "extend", "calibrate", "convert")


@pytest.mark.parametrize("command", WRITES)
def test_commands_that_write_a_model_take_push(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(
            [command, "--push-private", *(["x"] if command in ("run", "fit", "export", "calibrate", "convert") else [])]
        )
        == 2
    )
    missing = main([command, "--push", "small"]) if command in TRAINS else 2
    assert missing == 2
    told = capsys.readouterr().err
    assert "no such option" not in told
    if command in TRAINS:
        assert "not the name of a hub repository" in told


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["distill", "--recipe", "smoke", "--seeds", "2"], "--seeds makes several models"),
        (["distill", "--recipe", "smoke", "--check"], "--check saves no model"),
        (
            ["prune-layers", ".", "--data", "opinions", "--criterion", "all", "--keep", "2"],
            "criterion comparison",
        ),
        (["fit", ".", "--max-mb", "1", "--plan-only"], "--plan-only builds no model"),
        (["export", ".", "--to", "pyfunc", "--output", "x"], "an MLflow model is not a model folder"),
    ],
)
def test_push_needs_one_model(words: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--push", "hf:acme/small"]) == ExitCode.INPUT
    assert line in capsys.readouterr().err


def test_the_command_with_the_settings_of_a_shell(hub: Hub, tmp_path: Path) -> None:
    """The client's own variables: the address of the hub, the token, no large-file protocol of its own."""
    folder = tmp_path / "student"
    for name, content in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    own = {"HF_ENDPOINT": hub.address, "HF_TOKEN": WRITER, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    words = ["push", str(folder), f"hf:{NAME}", "--private", "--message", "first", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "compress", *words], capture_output=True, text=True, env={**os.environ, **own}
    )
    assert done.returncode == 0, done.stderr
    told = SimpleNamespace(**json.loads(done.stdout))
    assert (told.repository, told.files, told.folder) == (NAME, len(SHOWN), str(folder))
    assert hub.repositories[NAME].commits == [("first", SHOWN, [])]
    assert WRITER not in done.stdout + done.stderr
    assert hub.tokens == {WRITER}


def test_the_protocol_for_large_files_that_the_client_prefers(
    hub: Hub, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Xet, whose server is not there: nothing is committed; small files alone go the same way as with the older one."""
    pytest.importorskip("huggingface_hub._upload_pipeline", reason="an older client follows the server's choice")
    pytest.importorskip("hf_xet")
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", False)
    error = pushing(folder)
    assert "xet-write-token" in str(error)
    assert error.code == ExitCode.ENVIRONMENT
    assert hub.repositories[NAME].commits == []
    (folder / "model.safetensors").unlink()
    HubRepository(NAME).push(folder, Console(quiet=True))
    assert hub.repositories[NAME].commits[0][1] == [name for name in SHOWN if name != "model.safetensors"]
