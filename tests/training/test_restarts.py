"""Errors of the input are not tried again by torchrun's --max-restarts: the next attempt ends at once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from compress.cli.main import main
from compress.errors import ExitCode
from compress.training import restarts


def begin_attempt(folder: Path, number: int, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The error file of an attempt, as torchrun names it."""
    file = folder / f"attempt_{number}" / "0" / "error.json"
    file.parent.mkdir(parents=True)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(file))
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(number))
    return file


def test_a_typo_is_reported_once_and_ends_all_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    first = begin_attempt(tmp_path, 0, monkeypatch)
    assert main(["distil"]) == ExitCode.INPUT
    assert "distill" in json.loads(first.read_text())["message"]
    assert capfd.readouterr().err.count("error: ") == 1
    for number in (1, 2):  # what the words are does not matter any more
        begin_attempt(tmp_path, number, monkeypatch)
        assert main(["--version"]) == ExitCode.INPUT
        assert capfd.readouterr() == ("", "")


def test_a_process_whose_error_another_one_told_ends_again_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begin_attempt(tmp_path, 0, monkeypatch)
    restarts.record_end(2)
    begin_attempt(tmp_path, 1, monkeypatch)
    assert restarts.fails_again()


@pytest.mark.parametrize("count", ["1", None])
def test_a_file_of_another_launcher_is_left_alone(
    count: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a container's termination log."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "termination-log")
    if count is not None:
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", count)
    assert main(["distil"]) == ExitCode.INPUT
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("left", ["", "{}", '{"message": {"message": "RuntimeError"}}', '{"code": 70}'])
def test_crashes_are_tried_again(left: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = begin_attempt(tmp_path, 0, monkeypatch)
    for code in (ExitCode.BUG, ExitCode.STOPPED, ExitCode.RESOURCES, None, "2"):
        restarts.record_end(code, "error: …")
    assert not first.exists()
    assert not restarts.fails_again()
    if left:
        first.write_text(left)
    begin_attempt(tmp_path, 1, monkeypatch)
    assert not restarts.fails_again()
