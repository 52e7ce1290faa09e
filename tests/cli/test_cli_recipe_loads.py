"""A command reads the recipe's files once, and once more to check --set early; it validates as its flags need."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from compress.cli import main as frame
from compress.recipe import Recipe, compose, early
from compress.recipe.document import Value

TEACHER = "./taught.yaml"


@pytest.mark.parametrize(
    ("words", "recipe", "validated"),
    [
        (["distill", "--recipe", "distilbert-task", "--teacher", TEACHER], "distilbert-task", 1),
        (["distill", "--recipe", "distilbert-task", "--teacher", TEACHER, "--set", "seed=3"], "distilbert-task", 1),
        (["tokenizer"], "teacher", 1),
        (["run", "tiny-float", "--teacher", TEACHER], "tiny-float", 1),
        (["prune-layers", TEACHER, "--keep", "2"], "prune-layers", 2),
        (["prune-layers", TEACHER, "--keep", "2", "--layers-per-round", "1"], "prune-layers", 3),
        (["share", TEACHER, "--groups", "3"], "share", 2),
        (["quantize", TEACHER, "--max-drop", "1"], "quantize", 2),
        (["prune-vocab", TEACHER, "--size", "99"], "prune-vocab", 2),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_command_reads_its_recipe_once(
    words: list[str], recipe: str, validated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """validated: without the flags that depend on what the recipe says, and with them."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taught.yaml").write_text("extends: teacher\n")
    reads: Counter[str] = Counter()
    made: Counter[str] = Counter()
    read, check = compose.compose, compose.validate

    def counted(name: str, **more: Any) -> Any:
        reads[name] += 1
        return read(name, **more)

    def validate(root: Value) -> Recipe:
        made[root.plain()["name"]] += 1
        return check(root)

    monkeypatch.setattr(compose, "compose", counted)
    monkeypatch.setattr(early, "compose", counted)
    monkeypatch.setattr(compose, "validate", validate)
    assert frame.main([*words, "--dry-run"]) == 0
    assert reads[recipe] == 1 + ("--set" in words)
    assert made[recipe] == validated
