"""`compress drop-tokens` on a toy: chosen or given shares, recovery, and what can be done with the result."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import e2e_toy as toy
import pytest
from e2e_toy import TEACHER, Cli

import compress as api
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.stages.drop_tokens import choosing, measuring

RECIPE = f"""
extends: drop-tokens
description: fewer tokens on a toy
data: {{max_length: 24}}
{toy.QUICK}
stages:
  0: {{rows: 16}}
  1:
    training: {{batch_rows: 8, learning_rate: 1e-3, checkpoint_every: 2}}
"""
COMMAND = ("drop-tokens", TEACHER, "--recipe", "./fewer.yaml", "--data", "data")


def test_given_shares_and_recovery(taught: Path, compress: Cli) -> None:
    (taught / "fewer.yaml").write_text(RECIPE, encoding="utf-8")
    done = compress(*COMMAND, "--keep-tokens", "50", "--steps", "2", "--output", "runs/d", "--json")
    assert done.code == 0, done.err
    roles = {m["role"]: m["values"] for m in json.loads(done.out)["models"]}
    assert roles["student"]["speed/gflops"] < roles["teacher"]["speed/gflops"]
    made = modelfolder.load_model(Path("runs/d/student"))
    assert made.config.kept_tokens == (50,) * made.config.depth
    card = Path("runs/d/student/README.md").read_text(encoding="utf-8")
    assert "transformers cannot load this folder" in card
    assert "it drops tokens between its layers" in card
    refused = compress("export", "runs/d/student", "--to", "hf", "--output", "runs/hf")
    assert refused.code == 2
    assert "no class of transformers computes this model: it drops tokens between its layers" in refused.err
    again = compress(*COMMAND[:1], "runs/d/student", *COMMAND[2:], "--no-recover", "--output", "runs/again")
    assert again.code == 2
    assert again.line == (
        "error: the model drops tokens between its layers, and choosing them again would change which; start from its "
        "parent model, and drop tokens last"
    )
    with pytest.raises(UserError, match="drops tokens between its layers, and exits between them"):
        api.cascade("runs/d/student", "data", output="runs/early", exit_layers=[1], max_drop=40, quiet=True)


@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_percentages_that_do_not_fit(taught: Path, compress: Cli, more: tuple[str, ...]) -> None:
    (taught / "fewer.yaml").write_text(RECIPE, encoding="utf-8")
    for kept, message in (
        ("50,50,50,50,50", r"--keep-tokens 50,50,50,50,50: found 5 percentages, the model has \d layers"),
        ("150", "--keep-tokens 150: .*found 150, allowed"),
        ("50 --confidence 95", "--confidence 95: only applies with --max-drop; add --max-drop POINTS, or remove it"),
    ):
        done = compress(*COMMAND, "--keep-tokens", *kept.split(), "--no-recover", "--output", "runs/no", *more)
        assert done.code == 2
        assert re.search(message, done.err.splitlines()[-1]), done.err
        assert done.err.count("error:") == 1
    assert not Path("runs/no").exists()


@pytest.fixture
def known_times(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Milliseconds, instead of those of a clock: a layer takes one for all tokens; `made`: of the chosen model."""
    known = {"choosing": 0.01, "whole": 2.0, "made": 1.0}

    def look_up(*_: Any) -> tuple[dict[int, float], float]:
        return {percent: percent / 100 for percent in measuring.GRID}, known["choosing"]

    monkeypatch.setattr(measuring, "_measure_times", look_up)
    monkeypatch.setattr(
        choosing, "measure_models", lambda *_: [SimpleNamespace(p50=known[name]) for name in ("whole", "made")]
    )
    return known


def test_chosen_shares(taught: Path, compress: Cli, known_times: dict[str, float]) -> None:
    (taught / "fewer.yaml").write_text(RECIPE, encoding="utf-8")
    command = (*COMMAND, "--max-drop", "90", "--no-recover", "--output")
    done = compress(*command, "runs/chosen")
    assert done.code == 0, done.err
    made = modelfolder.inspect(Path("runs/chosen/model"))
    assert made.config.kept_tokens is not None
    assert made.config.kept_tokens[0] == min(measuring.GRID), "nearly all may be lost, so the boldest plan is proven"
    proof = "with 90 % confidence, at most 90 points of accuracy are lost on texts like the validation rows, if"
    assert proof in done.err
    assert f"before recovery training: {proof}" in " ".join(made.meta.notes)
    tested = json.loads(next(Path("runs/chosen").rglob("token-plans.json")).read_text(encoding="utf-8"))
    assert tested["columns"][-1] == "p-value"
    known_times["made"] = 1.99
    done = compress(*command, "runs/slow")
    assert done.code == 3
    assert "dropping tokens saves less than 5 % of the time within 90 points" in done.err
    known_times["choosing"] = 9.0
    done = compress(*command, "runs/none")
    assert done.code == 3
    assert "no choice of tokens saves its own time" in done.err
