"""Distillation from columns of the data, without a teacher model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import compress
from compress.api.model import Model

HOW: dict[str, Any] = {"device": "cpu", "max_length": 16, "quiet": True}
SHORT = {"steps": 12, "batch_rows": 16, "warmup": 0.0, "learning_rate": 0.01}
TEXTS = [
    f"{who}the {what} was {how}" for who in ("", "i think ") for what in ("film", "plot") for how in ("good", "bad")
]


def said_by_a_teacher(splits: Any) -> tuple[Any, list[dict[str, Any]]]:
    """The splits, and more text with what a teacher says of it: that all of it is positive."""
    return splits, [{"text": text, "p_negative": 0.02, "p_positive": 0.98} for text in TEXTS * 8]


def test_no_teacher_folder_is_needed(classifier: Model, splits: Any) -> None:
    data, more = said_by_a_teacher(splits)
    result = compress.distill(
        None, data, unlabelled=more, teacher_column=["p_negative", "p_positive"], labelled_rows=4, student=classifier,
        objectives=["soft_targets"], layers="0,2", allow_overlap=True, training=SHORT, **HOW,
    )  # fmt: skip
    models = {model["role"]: model for model in result.to_dict()["models"]}
    assert set(models) == {"student", "control"}
    assert models["student"]["values"]["rows/teacher_labelled"] == len(more)
    assert not [name for name in models["student"]["values"] if name.startswith("vs_teacher/")]
    assert any("the teacher is columns of the data" in note for note in result.to_dict()["notes"])
    assert result.model.config.depth == 2
    answers = [answer.as_json()["label"] for answer in result.model.predict([row["text"] for row in splits["test"]])]
    assert answers.count("positive") > 0.9 * len(answers), "the student learned what the columns say"
    assert "teacher_columns:" in Path("runs/distilbert-task/recipe.yaml").read_text()


def test_a_model_for_the_layers_and_columns_that_teach(classifier: Model, splits: Any) -> None:
    data, more = said_by_a_teacher(splits)
    more = [{**row, "text": f"{row['text']} {number}"} for number, row in enumerate(more * 2)]  # no text twice
    result = compress.distill(
        classifier, data, unlabelled=more, teacher_column=["p_negative", "p_positive"], student=2, control=False,
        min_confidence=0.9, disagreement="student", stop="agreement", allow_overlap=True, training=SHORT, **HOW,
    )  # fmt: skip
    models = {model["role"]: model["values"] for model in result.to_dict()["models"]}
    assert set(models) == {"teacher", "student"}
    rows = {name.removeprefix("rows/"): n for name, n in models["student"].items() if name.startswith("rows/")}
    assert (rows["held_out"], rows["teacher_labelled"], rows["removed_agreeing"]) == (12, 58, 58)
    assert rows["removed_unsure"] == 0, "the columns are sure of all rows"
    assert 0 <= result.to_dict()["stages"]["0-distill"]["text_agreement"] <= 1


def test_what_needs_a_model_is_rejected(classifier: Model, splits: Any) -> None:
    data, more = said_by_a_teacher(splits)
    how = {**HOW, "unlabelled": more, "teacher_column": ["p_negative", "p_positive"], "training": SHORT}
    with pytest.raises(compress.UserError, match="no model to initialize the student from") as error:
        compress.distill(None, data, **how)
    assert "student=FOLDER" in str(error.value.do)
    with pytest.raises(compress.UserError, match="objective hidden_mse reads more of the teacher"):
        compress.distill(None, data, student=classifier, objectives=["hidden_mse"], **how)
    with pytest.raises(compress.UserError, match="no effect without teacher_column=; add teacher_column=NAME"):
        compress.distill(classifier, data, teacher_noise=0.1, **HOW)
