"""Mistakes in --set are found before torch is imported; what other flags may still change is left to the validation."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.cli import main as frame
from compress.cli import options
from compress.errors import UserError
from compress.recipe.early import check_overrides

MISTAKES = [
    ("sed=1", "sed: unknown key; did you mean 'seed'?"),
    ("data.lmit=3", "data.lmit: unknown key; did you mean 'limit'?"),
    ("data.limit=0", "data.limit: found 0, allowed: > 0"),
    ("stages.0.studnt=null", "stages.0.studnt: unknown key; did you mean 'student'?"),
    ("stages.1.training.stepz=3", "stages.1.training.stepz: unknown key; did you mean 'steps'?"),
    ("stages.1-distill.training.steps=x", "stages.1.training.steps: found the text 'x', allowed: a whole number"),
    ("stages.*.training.learning_rate=5", "stages.0.training.learning_rate: found 5, allowed: < 1"),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[text for text, _ in MISTAKES])
def test_mistakes(text: str, message: str) -> None:
    with pytest.raises(UserError) as caught:
        check_overrides("smoke", [text])
    assert str(caught.value) == f"--set {text}: {message}"


@pytest.mark.parametrize(
    "texts",
    [
        ["seed=1", "data.limit=3", "stages.0.training.steps=3"],
        ["stages.0.training.epochs=1"],  # beside the recipe's steps; --steps and --epochs may take those away
        ["stages.7.training.steps=3"],  # a flag may add the stage
        ["stages.0.objectives.0.kind=nothing"],  # found by the whole validation
        ["stages.0.kind=nothing"],
        ["stages=3"],
    ],
)
def test_the_rest_is_left_to_the_validation(texts: list[str]) -> None:
    check_overrides("smoke", texts)


def test_a_mistake_of_the_file_is_not_blamed_on_the_flag(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text("extends: smoke\nsed: 1\n")
    check_overrides(str(file), ["seed=2"])


@pytest.mark.parametrize("command", [["distill", "--recipe", "smoke"], ["distill"], ["run", "smoke"]])
def test_the_command_line_asks_before_it_looks_at_devices(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("torch is imported here")

    monkeypatch.setattr(options, "resolve_device", never)
    assert frame.main([*command, "--set", "stages.0.training.stepz=3"]) == 2
    assert capsys.readouterr().err.startswith(
        "error: --set stages.0.training.stepz=3: stages.0.training.stepz: unknown"
    )
