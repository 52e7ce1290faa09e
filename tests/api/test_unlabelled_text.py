"""Distillation on text without labels: what is trained on, what the report and the run say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import compress
from compress.api.model import Model
from compress.stages.shared.task_data import TaskData

HOW: dict[str, Any] = {"device": "cpu", "max_length": 16, "student": 2, "quiet": True}
SHORT = {"steps": 4, "batch_rows": 8, "warmup": 0.0}
MORE = [f"he said the {what} was {how}" for what in ("film", "plot", "actor") for how in ("good", "bad")]


@pytest.fixture
def learned(monkeypatch: pytest.MonkeyPatch) -> list[TaskData]:
    """The data of each stage, control included, in order."""
    found: list[TaskData] = []

    def encode(*args: Any, make: Callable[..., TaskData] = TaskData.encode, **how: Any) -> TaskData:
        found.append(make(*args, **how))
        return found[-1]

    monkeypatch.setattr(TaskData, "encode", encode)
    return found


def test_the_student_learns_from_it_and_the_control_does_not(
    classifier: Model, splits: Any, learned: list[TaskData], capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [row["text"] for row in (*splits["validation"], *splits["test"])]
    text = [*MORE, measured[0], f"  {measured[-1].upper()} "]
    result = compress.distill(
        classifier, splits, unlabelled=text, training=SHORT, labelled_rows=10, **{**HOW, "quiet": False}
    )
    student, control = learned
    seen = {row for row in measured if row in text}
    left_out = len(text) - len([t for t in text if " ".join(t.lower().split()) not in measured])
    hidden = len(splits["train"]) - 10
    assert seen
    assert len(student.train) == 10 + hidden + len(text) - left_out
    assert (student.train.labels[10:] == -100).all()
    assert len(control.train) == 10
    said = capsys.readouterr().err
    assert "unlabelled rows left out: their text is also in the validation or test split" in said
    by_role = {model["role"]: model["values"] for model in result.to_dict()["models"]}
    assert by_role["student"]["rows/labelled"] == by_role["control"]["rows/labelled"] == 10
    assert by_role["student"]["rows/teacher_labelled"] == hidden + len(text) - left_out
    assert by_role["control"]["rows/teacher_labelled"] == 0
    assert "rows/labelled" not in by_role["teacher"]
    found = {row["check"]: row for row in result.to_dict()["findings"]}
    assert "of accuracy over the control" in found["gain"]["finding"]
    assert found["gain"]["do"]
    assert by_role["student"]["rows/teacher_confident"] == 0, "random weights are sure of nothing"
    journal = "".join(p.read_text() for p in Path("runs").rglob("*.jsonl"))
    assert "training rows labelled by the teacher only" in journal, "the table in the run's note"
    assert '"rows.teacher_labelled"' in journal, "a param"


def test_a_split_of_the_data_is_used_by_default_and_overlap_may_stay(
    classifier: Model, splits: Any, learned: list[TaskData]
) -> None:
    rows = {**splits, "unlabelled": [{"text": text} for text in MORE] + [{"text": splits["test"][0]["text"]}]}
    compress.distill(classifier, rows, training=SHORT, control=False, allow_overlap=True, **HOW)
    assert len(learned[0].train) == len(splits["train"]) + len(MORE) + 1


def test_recovery_training_uses_it(classifier: Model, splits: Any, learned: list[TaskData]) -> None:
    how = {name: value for name, value in HOW.items() if name != "student"}
    Path("pool.txt").write_text("".join(f"he told us the {what} was {how}\n" for what in "abc" for how in "de"))
    compress.prune_layers(
        classifier, splits, keep=2, criterion="uniform", unlabelled=MORE, pool="pool.txt", pool_rows=4,
        pool_by="vectors", training=SHORT, **how,
    )  # fmt: skip
    texts = [text for data in learned for rows in data.rows[1:] for text in rows.texts]
    assert sum(text in MORE for text in texts) > 0
    assert sum("he told us" in text for text in texts) >= 4


def test_text_that_nobody_reads_is_an_error(classifier: Model, splits: Any) -> None:
    how = {name: value for name, value in HOW.items() if name != "student"}
    with pytest.raises(compress.UserError, match="text without labels has no effect"):
        compress.prune_layers(classifier, splits, keep=2, criterion="uniform", unlabelled=MORE, recover=False, **how)
    with pytest.raises(compress.UserError, match="plain text has no effect: no stage of recipe prune-layers reads"):
        compress.prune_layers(classifier, splits, keep=2, criterion="uniform", set={"corpus.source": "a.txt"}, **how)
    with pytest.raises(compress.UserError, match="has no effect without train="):
        compress.fit(classifier, splits, max_mb=1, unlabelled=MORE, device="cpu", quiet=True)


def test_all_of_it_is_in_the_test_split(classifier: Model, splits: Any) -> None:
    text = [row["text"] for row in splits["test"]]
    with pytest.raises(compress.UserError, match="all unlabelled rows are also in the validation or test split"):
        compress.distill(classifier, splits, unlabelled=text, training=SHORT, **HOW)


def test_text_of_another_script_and_less_than_requested_are_warned_of(
    classifier: Model, splits: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    text = ["фильм был хороший"] * 20
    compress.distill(classifier, splits, unlabelled=text, unlabelled_rows=1000, training=SHORT, control=False, **HOW)
    told = capsys.readouterr().err
    assert "only 20 of the 1,000 unlabelled rows requested are there" in told
    warned = [line for line in told.splitlines() if "unknown to the tokenizer" in line]
    assert len(warned) == 1
    assert "same language?" in warned[0]


def test_the_plan_of_the_data_prints_examples(
    classifier: Model, splits: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    from compress.api.data_input import data_name, text_name
    from compress.cli.main import main

    capsys.readouterr()
    words = ["distill", "--recipe", "distilbert-task", "--teacher", "classifier", "--data", data_name(splits)]
    code = main([*words, "--unlabelled", text_name(MORE), "--max-length", "16", "--augment", "mix", "--plan-data"])
    said = capsys.readouterr()
    assert code == 0, said.err
    lines = said.out.splitlines()
    assert f"training rows with labels: {len(splits['train'])}" in lines
    measured = {row["text"] for split in ("validation", "test") for row in splits[split]}
    used = [text for text in MORE if text not in measured]
    assert 0 < len(used) < len(MORE)
    assert f"rows without labels: {len(used)}" in lines
    assert f"  {used[0]}" in lines
    assert any(line.startswith("copies by mix, at most 5 of each text: ") for line in lines)
    assert not Path("runs").exists()


def test_the_student_learns_from_mixed_spans(classifier: Model, splits: Any, learned: list[TaskData]) -> None:
    compress.distill(classifier, splits, augment="mix", augment_copies=2, training=SHORT, control=False, **HOW)
    added = len(learned[0].train) - len(splits["train"])
    assert 0 < added <= 2 * len(splits["train"])
    assert (learned[0].train.labels[-added:] == -100).all()
