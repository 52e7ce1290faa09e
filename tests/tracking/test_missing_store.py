"""A command that fails before its work leaves nothing behind, not even an empty store."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from compress.cli.main import main

NO_STORE = r"error: .*mlruns/mlflow\.db: no MLflow store found; name it with --tracking-uri"
NO_RUN = r"error: no run 'nope' in sqlite:.*; there are none"
COMMANDS = {
    "runs show nope": NO_RUN,
    "runs delete nope --yes": NO_RUN,
    "runs export out": NO_STORE,
    "compare nope": r"error: .*: no run and no model folder 'nope'; the store has no runs",
    "evaluate models:/nope/1 --data opinions": NO_STORE,
    "evaluate runs:/nope/model --data opinions": NO_STORE,
    "predict --model models:/nope@champion --file texts": NO_STORE,
    "finetune --model models:/nope/1 --data opinions": NO_STORE,
    "distill --recipe distilbert-task --teacher models:/nope/1 --data opinions": NO_STORE,
    "fit models:/nope/1 --data opinions --max-mb 3": NO_STORE,
    "calibrate runs:/nope/model --data opinions --output out": NO_STORE,
    "export models:/nope/1 --output out": NO_STORE,
    "promote nope --as x": r"error: model folder 'nope' not found.*",
    "distill --recipe distilbert --set stages.0.training.steps=9223372036854775808": r"error: .*allowed: <= 1e\+12",
    "distill --recipe distilbert --limit 9223372036854775808": r"error: .*allowed: <= 1e\+12",
}


@pytest.mark.parametrize("words", COMMANDS)
def test_nothing_is_left_behind(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    (tmp_path / "texts").write_text("one\n")
    assert main(words.split()) == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert re.fullmatch(COMMANDS[words], last), last
    assert [path.name for path in tmp_path.iterdir()] == ["texts"]


def test_an_empty_list_makes_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    assert main(["runs", "list", "--json"]) == 0
    assert capsys.readouterr().out.strip() == "[]"
    assert list(tmp_path.iterdir()) == []
