"""Recipes as they are, without a length or a learning rate, through the real command line on a toy."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from e2e_toy import PRETRAINED, QUICK, TEACHER, Cli

from compress.modelfolder import folder as modelfolder
from compress.recipe import load_recipe

DATA = ("--data", "data", "--threads", "1", "--max-length", "24")
SHORT = ("--set", "stages.0.training.min_steps=8", "--set", "stages.0.training.max_steps=16", "--batch-size", "8")


def test_length_rate_and_baseline_by_default(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    words = ("finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, *DATA, *SHORT)
    plan = compress(*words, "--dry-run")
    assert plan.code == 0, plan.err
    assert "until validation accuracy stops rising (8 to 16 steps), 8 rows a step, learning rate 0.0005" in plan.out

    done = compress(*words, "--output", "runs/own")
    assert done.code == 0, done.err
    assert "learning rate 0.0005, by the hidden size" in done.err
    assert "0-finetune: trained " in done.err
    assert "  baseline: " in done.out
    made = json.loads(Path("runs/own/stages/0-finetune/steps.json").read_text())
    assert 8 <= made["steps"] <= 16

    kept = load_recipe(Path("runs/own/recipe.yaml")).stages[0].training
    assert kept.learning_rate == made["learning_rate"] == 5e-4
    assert kept.is_automatic
    note = modelfolder.inspect(Path("runs/own/model")).meta.recipe
    assert note is not None
    assert note.resolved["stages"][0]["training"]["learning_rate"] == 5e-4
    assert '"baseline/' in Path("runs/own/model/compress.json").read_text(), "its figure is kept beside the model's"


def test_a_student_and_its_control_take_the_same_steps(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: distilbert-task\n{QUICK}", encoding="utf-8")
    words = ("distill", "--recipe", "./quick.yaml", "--teacher", TEACHER, *DATA, *SHORT, "--output", "runs/small")
    done = compress(*words, "--set", "stages.0.student.layers=[0, 2]")
    assert done.code == 0, done.err
    steps = [
        json.loads(Path(f"runs/small/stages/0-distill{end}/steps.json").read_text())["steps"]
        for end in ("", "-control")
    ]
    assert steps[0] == steps[1]


def test_a_model_below_the_baseline_is_a_finding(taught: Path, compress: Cli) -> None:
    (taught / "quick.yaml").write_text(f"extends: finetune\n{QUICK}", encoding="utf-8")
    words = ("finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, *DATA, "--output", "runs/weak", "--json")
    done = compress(*words, "--steps", "1", "--lr", "1e-7")
    assert done.code == 0, done.err
    found = {row["check"]: row["finding"] for row in json.loads(done.out)["findings"]}
    assert " is not above " in found["below_baseline"]


def test_what_is_made_of_a_model_reads_texts_as_long_as_it(taught: Path, compress: Cli) -> None:
    """Not as long as the shipped recipe says, unless a person does."""
    shutil.copytree(TEACHER, "other")
    (taught / "other/compress.json").unlink()  # as another program leaves it
    (taught / "other/manifest.json").unlink()
    settings = json.loads(Path("other/tokenizer_config.json").read_text())
    Path("other/tokenizer_config.json").write_text(json.dumps(settings | {"model_max_length": 20}))
    for words, length in {
        ("quantize", TEACHER): modelfolder.inspect(TEACHER).meta.max_length,
        ("quantize", "other"): 20,
        ("prune-layers", "other"): 20,
        ("distill", "--recipe", "distilbert-task", "--teacher", "other"): 20,
        ("distill", "--recipe", "multi-teacher", "--teacher", "other", "--teacher", TEACHER): 20,
        ("quantize", "other", "--max-length", "12"): 12,
        ("quantize", "other", "--set", "data.max_length=13"): 13,
        ("quantize", "other", "--set", "data={source: data, max_length: 14}"): 14,
        ("run", "tiny-cpu", "--model", "other"): 20,
    }.items():
        done = compress(*words, *(() if "data={" in words[-1] else ("--data", "data")), "--print-recipe")
        assert done.code == 0, done.err
        assert f"\n  max_length: {length}\n" in done.out, words
    done = compress("prune-vocab", "other", "--data", "data", "--set", "evaluation.latency.seconds=1", "--output", "a")
    assert done.code == 0, done.err
    made = modelfolder.inspect("a/model")
    assert (made.meta.max_length, made.longest_text) == (20, 20)


def test_fine_tuning_reads_texts_whole(taught: Path, compress: Cli) -> None:
    """As long as the texts are, not as the shipped recipe says, unless a person does."""
    rows = [json.loads(line) for line in Path("data/train.jsonl").read_text().splitlines()]
    long = "".join(json.dumps({**row, "text": " ".join([row["text"]] * 4)}) + "\n" for row in rows)
    shutil.copytree("data", "long")
    Path("long/train.jsonl").write_text(long)
    positions = modelfolder.inspect(PRETRAINED).config.max_positions
    for words, length in {
        ("--data", "long"): positions,
        ("--data", "long", "--max-length", "12"): 12,
        ("--data", "long", "--recipe", "./own.yaml"): 13,
    }.items():
        Path("own.yaml").write_text("extends: finetune\ndata:\n  max_length: 13\n")
        done = compress("finetune", PRETRAINED, *words, "--print-recipe")
        assert done.code == 0, done.err
        assert f"\n  max_length: {length}\n" in done.out, words
    plan = compress("finetune", PRETRAINED, "--data", "long", "--dry-run")
    assert f"texts of up to {positions} tokens" in plan.out
