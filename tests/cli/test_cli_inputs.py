"""A command that changes a model asks for the model and the data; built-in ones are used where that is said."""

from __future__ import annotations

from pathlib import Path

import pytest

from compress.cli._flags import require_inputs
from compress.cli.main import main
from compress.encoder.modules.model import Model
from compress.errors import UserError
from compress.modelfolder.folder import FolderMeta, save_model
from compress.modelfolder.meta import DataNote
from compress.recipe import LoadedRecipe
from compress.stages.distill.flags import TABLE as DISTILL
from compress.stages.quantize.flags import TABLE as QUANTIZE

ON_TEXT = "distill --recipe text-distil --teacher mine --corpus opinions-corpus"
WANTED = "data is required: labelled rows, or texts for an embedding model"
CASES = {
    "quantize": "MODEL: a model is required; compress quantize FOLDER --data DATA; to try it without one, add --demo",
    "prune-layers --drop 1": "MODEL: a model is required; compress prune-layers FOLDER --data DATA; to try it",
    "distill --recipe distilbert-task": "--teacher: a model is required; compress distill --recipe distilbert-task "
    "--teacher FOLDER --data DATA; to try it",
    "quantize mine": f"--data: {WANTED}; compress quantize FOLDER --data DATA; to use built-in data",
    "share made": f"--data: {WANTED}; the model was made from reviews.csv; to use built-in data",
    "prune-vocab made --corpus opinions-corpus": f"--data: {WANTED}; the model was made from reviews.csv; to use",
    "distill --recipe replay-distilbert --teacher mine --data opinions": "--corpus: plain text is required; add "
    "--corpus FILE; to use built-in text, add --demo",
    "prune-vocab mine --corpus opinions-corpus --data opinions --pretrained": "--data: labelled data is not read with "
    "--pretrained; remove one of them",
    "distill --recipe text-distil": "--teacher: a model is required; compress distill --recipe text-distil --teacher "
    "FOLDER --corpus TEXT; to try it",
    "distill --recipe text-distil --corpus opinions-corpus": "--teacher: a model is required; compress distill",
    "distill --recipe embed-distil --data opinions": "--teacher: a model is required; compress distill --recipe "
    "embed-distil --teacher FOLDER --data TEXTS",
    "distill --recipe embed-vectors --data opinions --student mine": "--teacher-column: a column with the teacher's "
    "outputs is required; compress distill --recipe embed-vectors --student FOLDER --data TEXTS --teacher-column",
    "distill --recipe embed-vectors --student mine --teacher-column embedding": f"--data: {WANTED}; compress distill "
    "--recipe embed-vectors --student FOLDER --data TEXTS --teacher-column embedding",
    "distill --recipe multi-teacher --data opinions": "--teacher: a model is required; compress distill --recipe "
    "multi-teacher --teacher FOLDER --data DATA; to try it without one, add --demo",
    "make-static --recipe embed-static --data opinions": "MODEL: a model is required; compress make-static FOLDER "
    "--recipe embed-static --data TEXTS",
    "distill --recipe text-distil --teacher mine": "--corpus: plain text is required; add --corpus FILE",
    f"{ON_TEXT} --unlabelled opinions": "--unlabelled: has no effect: recipe text-distil reads plain text only; use "
    "--corpus; labelled data is for the student: compress finetune",
    f"{ON_TEXT} --data opinions": "--data: has no effect: recipe text-distil reads plain text only",
    f"{ON_TEXT} --seeds 2": "--seeds: the runs have no figures to compare: the last stage, distill, makes no model for "
    "a task; run a recipe that ends with one for a task",
    f"{ON_TEXT} --sweep stages.0.training.steps=1,2": "sweep: the runs have no figures to compare",
    "finetune": f"--data: {WANTED}; compress finetune --model FOLDER --data DATA; to use built-in data",
}


@pytest.mark.parametrize("words", CASES)
def test_what_is_missing_is_asked_for(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tiny_model: Model
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, data in (("mine", None), ("made", DataNote(name="reviews.csv", fingerprint="0"))):
        save_model(tmp_path / name, tiny_model, tokenizer_files={}, meta=FolderMeta(data=data))
    assert main(words.split()) == 2
    assert f"error: {CASES[words]}" in capsys.readouterr().err
    assert {p.name for p in tmp_path.iterdir()} == {"mine", "made"}, "nothing is made"


def test_what_may_use_built_in_data() -> None:
    for name in ("distilbert", "smoke"):
        require_inputs(DISTILL, name, LoadedRecipe.read(name, []), set())
    quantize = LoadedRecipe.read("quantize", [])
    require_inputs(QUANTIZE, "a-file-of-mine.yaml", quantize, set())
    require_inputs(QUANTIZE, "quantize", quantize, {"teacher", "data.source"})
    with pytest.raises(UserError, match="a model is required"):
        require_inputs(QUANTIZE, "quantize", quantize, {"data.source"})


def test_demo_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "--help-all"]) == 0
    assert "--demo" in capsys.readouterr().out


def test_columns_teach_in_place_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command of the documentation, which names no teacher, comes as far as its data."""
    monkeypatch.chdir(tmp_path)
    words = "distill --recipe distilbert-task --data rows.jsonl --teacher-column probabilities --student mine"
    assert main(words.split()) == 2
    assert "a model is required" not in (told := capsys.readouterr().err)
    assert "rows.jsonl" in told
