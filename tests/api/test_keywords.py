"""Errors of the functions name keywords, not the flags of the command."""

from __future__ import annotations

from typing import Any

import pytest

import compress
from compress import registry
from compress.api.command import FOLDER, _keywords
from compress.api.keywords import name_keywords
from compress.errors import UserError


@pytest.mark.parametrize(
    ("function", "options", "line"),
    [
        ("finetune", {"steps": 5, "epochs": 3}, "epochs= and steps= together: each sets the length of"),
        ("distill", {"teacher_noise": 0.1}, "teacher_noise: has no effect without teacher_column=; add"),
        ("prune_layers", {"recover": False, "steps": 4}, "steps: nothing is trained with recover=False; remove re"),
        ("prune_width", {"keep": 0.5, "target_params": "50%"}, "keep= and target_params= together: each sets how many"),
        ("make_static", {"dimensions": 8, "keep_width": True}, "dimensions= and keep_width=True together: both set"),
        ("quantize", {"mode": "ptq", "steps": 4}, "steps: "),
        ("fit", {}, "compress fit: at least one bound is required; add max_mb=, max_ms= or max_drop="),
    ],
)
def test_errors_of_functions(function: str, options: dict[str, Any], line: str, classifier: compress.Model) -> None:
    with pytest.raises(UserError) as caught:
        getattr(compress, function)(classifier, "opinions", quiet=True, **options)
    assert caught.value.line().startswith(line)
    assert "--" not in str(caught.value)


def test_errors_of_a_models_methods(classifier: compress.Model) -> None:
    with pytest.raises(UserError, match=r"^no_speed=True: cannot be combined with length=; remove one of the two"):
        classifier.evaluate("opinions", no_speed=True, length=8, quiet=True)
    with pytest.raises(UserError, match=r"^opset: only applies to ONNX export; remove it or use to='onnx'"):
        classifier.export("hf", opset=17, quiet=True)


def test_errors_of_a_model_that_is_opened(classifier: compress.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    for call in ("predict", "embed"):
        with pytest.raises(UserError, match=r"^device='cuda': CUDA is not available: .*; use device='cpu'"):
            getattr(compress.load(classifier, device="cuda"), call)("a film")


@pytest.mark.parametrize(
    ("flags", "keywords"),
    [
        ("add --teacher FOLDER", "add teacher=FOLDER"),
        ("use --max-length 64 or less", "use max_length=64 or less"),
        ("run it with --device cuda on a machine with one", "run it with device='cuda' on a machine with one"),
        ("use --task regression, or name a column", "use task='regression', or name a column"),
        ("add --data DATA, or remove --teacher and --control", "add data=DATA, or remove teacher= and control=True"),
        ("remove --no-control", "remove control=False"),
        ("e.g. --set stages.0.training.steps=100", "e.g. set={'stages.0.training.steps': 100}"),
        ("or --layers auto for fewer", "or layers='auto' for fewer"),
        ("name one with --label-column; see --help", "name one with label_column=; see --help"),
        ("add --recipe text-distil", "add recipe='text-distil'"),
        ("measure it: compress evaluate M --data DATA", "measure it: compress evaluate M --data DATA"),
        ("try `pip install --seed` in runs/a--seed", "try `pip install --seed` in runs/a--seed"),
        ("`torchrun --seed 1`, and --seed 1", "`torchrun --seed 1`, and seed=1"),
    ],
)
def test_a_flag_in_a_sentence(flags: str, keywords: str) -> None:
    command = registry.module(FOLDER, "distill").command
    error = UserError("wrong", do=flags)
    name_keywords(error, _keywords(command), ())
    assert (error.do, str(error)) == (keywords, f"wrong; {keywords}")


def test_a_keyword_stands_alone_where_the_error_is() -> None:
    command = registry.module(FOLDER, "distill").command
    for where, named in {
        "--teacher": "teacher",
        "--max-length 9": "max_length=9",
        "--pool words": "pool='words'",
    }.items():
        error = UserError("wrong", where=where)
        name_keywords(error, _keywords(command), ())
        assert error.where == named
