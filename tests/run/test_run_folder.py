"""What the folder of a run writes down: never a password, and the command that continues the run."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from compress.contracts import RunOptions
from compress.errors import UserError
from compress.recipe import load_recipe
from compress.run.folder import RECORD, Request, claim, command_line, resume_command
from compress.tracking import resolve_store

ADDRESS = "http://me:can@ary/canary@host:5000"


@pytest.mark.parametrize("words", [["--tracking-uri", ADDRESS], [f"--tracking-uri={ADDRESS}"]])
def test_a_password_is_in_no_command(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compress", "distill", *words, "--seed", "1"])
    assert "canary" not in command_line()
    assert resume_command(Path("runs/a")) == (
        "MLFLOW_TRACKING_URI=ADDRESS compress distill --seed 1 --output runs/a --resume"
    )


def test_an_address_without_a_password_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["compress", "distill", "--tracking-uri", "http://host:5000", "--output", "o"])
    assert resume_command(Path("o")) == "compress distill --tracking-uri http://host:5000 --output o --resume"


def test_a_resumed_run_asks_for_the_address_that_nobody_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["compress", "distill", "--tracking-uri", ADDRESS])
    request = Request(load_recipe("smoke"))
    new = claim(request, RunOptions(output=tmp_path / "o"))
    new.record("stopped", {}, f"{resolve_store(ADDRESS).shown} my experiment")
    assert "canary" not in (tmp_path / "o" / RECORD).read_text()
    options = RunOptions(output=tmp_path / "o", resume=True)
    with pytest.raises(
        UserError, match=r"recorded in http://\*\*\*@host:5000, whose password is not stored; set MLFLOW"
    ):
        claim(request, options)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)
    assert not claim(request, options).new
