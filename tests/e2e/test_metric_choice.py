"""`--metric`: what decides, from fine-tuning on, wherever quality is judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import PRETRAINED, QUICK, TEACHER, Cli

from compress.modelfolder import folder as modelfolder

pytestmark = pytest.mark.thorough

DATA = ("--data", "data", "--threads", "1")


def context(run: str) -> dict[str, Any]:
    """What the first model of an `evaluate --json` was measured by."""
    return json.loads(run)["models"][0]["context"]


def test_the_metric_that_was_chosen_decides_from_then_on(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    made = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, *DATA, "--metric", "f1_macro",
        "--output", "runs/fine",
    )  # fmt: skip
    assert made.code == 0, made.err
    assert json.loads(Path("runs/fine/resampled.json").read_text())["metric"] == "f1_macro"
    assert modelfolder.inspect("runs/fine/model").meta.task_settings["metric"] == "f1_macro"
    told = compress("evaluate", "runs/fine/model", *DATA, "--json")
    assert context(told.out)["metric"] == "f1_macro", "the model's own"
    told = compress("evaluate", "runs/fine/model", *DATA, "--metric", "matthews", "--against", TEACHER, "--json")
    assert context(told.out)["metric"] == "matthews", "the one that is asked for"
    values = json.loads(told.out)["models"][1]["values"]
    assert "vs_teacher/matthews_difference_low" in values
    assert "vs_teacher/p_value" not in values, "an exact test of right answers says nothing of another metric"
    curves = compress("evaluate", "runs/fine/model", *DATA, "--robustness", "typos", "--output", "runs/curve", "--json")
    assert curves.code == 0, curves.err
    assert json.loads(curves.out)["models"][0]["metric"] == "f1_macro"
    made = compress(
        "distill", "--recipe", "./task.yaml", "--teacher", "runs/fine/model", *DATA, "--output", "runs/small"
    )
    assert made.code == 0, made.err
    assert modelfolder.inspect("runs/small/student").meta.task_settings["metric"] == "f1_macro"
    assert json.loads(Path("runs/small/resampled.json").read_text())["metric"] == "f1_macro"


def test_a_fit_is_judged_and_certified_by_it(taught: Path, compress: Cli) -> None:
    made = compress(
        "fit", TEACHER, *DATA, "--length", "24", "--plans", "1", "--runtime", "onnxruntime", "--max-mb", "0.05",
        "--uncertified", "--metric", "matthews", "--output", "runs/fit", "--json",
    )  # fmt: skip
    assert made.code == 0, made.err
    told = json.loads(made.out)
    assert told["certificate"]["quality"]["metric"] == "matthews"
    assert told["certificate"]["difference"]["p_value"] is None
    assert "matthews" in made.err.lower()
    checks = json.loads(compress("verify", told["model"], *DATA, "--json").out)["checks"]
    assert next(row for row in checks if row["what"] == "quality")["verdict"] == "holds"


def test_what_cannot_decide_is_refused(taught: Path, compress: Cli) -> None:
    for metric, said in (
        ("acuracy", "classification with 2 labels has no metric 'acuracy'; did you mean 'accuracy'?"),
        ("calibration_error", "has no metric 'calibration_error'"),
        ("entity_f1", "has no metric 'entity_f1'"),
    ):
        for command in (("evaluate", TEACHER), ("fit", TEACHER, "--max-mb", "1"), ("quantize", TEACHER)):
            done = compress(*command, *DATA, "--metric", metric)
            assert (done.code, said in done.err) == (2, True), done.err
            assert "data.metric" in done.err
