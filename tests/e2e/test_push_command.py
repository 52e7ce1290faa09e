"""`--push`: what a command made is on the hub when it ends, and here in any case."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from e2e_toy import Cli
from hub_server import Hub, Repository, logged_in

from compress.contracts import RunOptions
from compress.errors import ExitCode, UserError
from compress.fit import run as fitting
from compress.fit.request.bounds import Bounds
from compress.fit.request.options import FitOptions
from compress.modelfolder.push import list_files

NAME = "acme/small"
TRAIN = ("finetune", "--model", "mine", "--data", "data", "--steps", "2", "--output", "runs/tuned")
MADE = Path("runs/tuned/model")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with logged_in(monkeypatch, tmp_path) as made:
        yield made


def folder(path: Path) -> dict[str, bytes]:
    return {name: (path / name).read_bytes() for name in list_files(path)}


def test_a_training_pushes_its_model_with_the_figures(own_model: Path, compress: Cli, hub: Hub) -> None:
    done = compress(*TRAIN, "--push", f"hf:{NAME}", "--push-private", "--json")
    assert done.code == 0, done.err
    pushed = hub.repositories[NAME]
    assert pushed.private
    assert len(pushed.commits) == 1
    assert pushed.files == folder(MADE)
    told = json.loads(done.out)
    assert told["pushed"]["url"] == f"{hub.address}/{NAME}"
    head = yaml.safe_load(pushed.files["README.md"].decode().split("---\n")[1])
    assert head["pipeline_tag"] == "text-classification"
    assert head["model-index"]


def test_a_push_that_fails_loses_nothing(own_model: Path, compress: Cli, hub: Hub) -> None:
    hub.fail = ("/commit/", 422)
    done = compress(*TRAIN, "--push", f"hf:{NAME}")
    assert done.code == ExitCode.ENVIRONMENT
    assert f"the model is in {MADE}; push it with: compress push {MADE} hf:{NAME}" in done.line
    assert json.loads(Path("runs/tuned/compress-run.json").read_text())["status"] == "finished"
    hub.fail = None
    assert compress("push", MADE, f"hf:{NAME}").code == 0
    assert hub.repositories[NAME].files == folder(MADE)


def test_a_push_that_would_fail_is_known_before_the_training(
    own_model: Path, compress: Cli, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    done = compress(*TRAIN, "--push", f"hf:{NAME}")
    assert done.code == ExitCode.ENVIRONMENT
    assert "the model cannot be pushed: there is no token" in done.line
    assert not Path("runs/tuned").exists()


def test_a_dry_run_pushes_nothing(own_model: Path, compress: Cli, hub: Hub) -> None:
    done = compress(*TRAIN, "--push", f"hf:{NAME}", "--dry-run")
    assert done.code == 0, done.err
    assert f"push: hf:{NAME}" in done.out
    assert hub.requests == []


@pytest.mark.parametrize(
    "words",
    [
        ("extend", "mine", "--max-positions", "160", "--output", "out"),
        ("export", "mine", "--to", "hf", "--output", "out"),
    ],
)
def test_commands_without_a_run_push(own_model: Path, compress: Cli, hub: Hub, words: tuple[str, ...]) -> None:
    hub.repositories[NAME] = Repository(files={"model.onnx": b"of an older model", "LICENSE": b"MIT"})
    done = compress(*words, "--push", f"hf:{NAME}", "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["pushed"]["repository"] == NAME
    assert hub.repositories[NAME].files == {**folder(Path("out")), "LICENSE": b"MIT"}


@pytest.mark.parametrize(
    ("status", "uncertified", "pushes"),
    [
        ("certified", False, True),
        ("uncertified", True, True),
        ("uncertified", False, False),
        ("infeasible", True, False),
    ],
)
def test_fit_pushes_what_it_accepts(
    own_model: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, status: str, uncertified: bool, pushes: bool
) -> None:
    found = {"status": status, "why": ["busy"]}
    document: Mapping[str, Any] = {"model": str(own_model), "certificate": found}
    monkeypatch.setattr(fitting.Fit, "__init__", lambda *_: None)
    monkeypatch.setattr(fitting.Fit, "go", lambda _: document)
    monkeypatch.setattr(fitting.report, "short", lambda _: "close")
    wanted = FitOptions(model="mine", bounds=Bounds(1.0, None, None, None), uncertified=uncertified)
    try:
        fitting.fit(wanted, RunOptions(push=NAME), fitting.Console(quiet=True))
    except UserError:
        assert not pushes
    assert (NAME in hub.repositories) is pushes
