"""Answers without an encoder: each kind of task has one, and what it knows follows from the training rows."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from compress.contracts import BASELINES
from compress.data.reading.sources import open_table
from compress.data.tables.table import Table
from compress.data.task import ScoredAnswers
from compress.data.tasks import task_of
from compress.data.tasks.classification import Task as Classification
from compress.data.text import baselines
from compress.measure.baseline import Baseline, describe_weak, measure_baseline
from compress.measure.measured_model import MeasuredModel
from compress.measure.models import Measurement
from compress.measure.subject import Subject

KINDS = {
    "opinions": "accuracy",
    "opinions-pairs": "accuracy",
    "opinions-claims": "f1_micro",
    "opinions-similarity": "spearman",
    "opinions-tags": "entity_f1",
}


@pytest.fixture
def no_sklearn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(baselines, "_has_sklearn", lambda: False)


def table(name: str, limit: int = 200) -> Table:
    return open_table(name, limit=limit)


@pytest.mark.thorough
@pytest.mark.parametrize("name", KINDS)
def test_every_kind_has_a_figure_above_chance(name: str) -> None:
    if importlib.util.find_spec("sklearn") is None:
        pytest.skip("scikit-learn is an extra")
    found = measure_baseline(table(name), "test", KINDS[name])
    assert found is not None
    assert found.name in BASELINES
    assert found.value > 0.1, found


@pytest.mark.parametrize("name", [name for name in KINDS if name != "opinions-similarity"])
@pytest.mark.usefixtures("no_sklearn")
def test_without_scikit_learn_there_is_one_too(name: str) -> None:
    found = measure_baseline(table(name), "test", KINDS[name])
    assert found is not None
    assert found.name in (baselines.BAYES, baselines.TAG)
    assert found.value > 0.1, found


@pytest.mark.usefixtures("no_sklearn")
def test_numbers_have_none_without_scikit_learn() -> None:
    assert measure_baseline(table("opinions-similarity"), "test", "spearman") is None


def test_rows_that_are_learned_from_judge_nothing() -> None:
    opened = table("opinions", 40)
    assert measure_baseline(opened, "train", "accuracy") is None
    assert measure_baseline(opened, "test", None) is None


def test_a_baseline_is_announced_where_one_is_scored(tmp_path: Path) -> None:
    said: list[str] = []
    for split in ("train", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(f'{{"text": "text {i}"}}\n' for i in range(12)))
    assert measure_baseline(open_table(str(tmp_path), task="embedding"), "test", "cosine", said.append) is None
    assert said == []
    measure_baseline(table("opinions", 40), "test", "accuracy", said.append)
    assert said == ["scoring a baseline without an encoder"]


def test_naive_bayes_is_the_written_formula() -> None:
    texts, labels = ["a a b", "b c"], np.array([0, 1])
    found = baselines.naive_bayes(texts, labels, ["a", "c b", "unknown"], 2)
    # add-one over the vocabulary {a, b, c}: p(a|0) = 3/6, p(a|1) = 1/5; both classes have the prior 2/4
    assert np.allclose(found[0], np.log([0.5 * 3 / 6, 0.5 * 1 / 5]))
    assert np.allclose(found[1], np.log([0.5 * 1 / 6 * 2 / 6, 0.5 * 2 / 5 * 2 / 5]))
    assert np.allclose(found[2], np.log([0.5, 0.5]))


def test_a_word_gets_its_commonest_tag_and_a_new_one_that_of_rare_words() -> None:
    words = [["the", "dog", "runs"], ["the", "dog", "barks"], ["the", "cat"]]
    tags = [[0, 1, 2], [0, 1, 2], [3, 1]]
    assert baselines.tag_words(words, tags, [["the", "dog", "sings"], ["cat"]]) == [[0, 1, 2], [1]]


def test_the_sentence_that_shares_rare_words_with_the_question() -> None:
    context = "Anna lives in Rome. The dog of Paul sleeps. It is the best of the dogs."
    assert baselines.nearest_sentences(["Where does Anna live?"], [context]) == ["Anna lives in Rome."]
    assert baselines.nearest_sentences(["谁住在罗马"], ["狗在睡觉。安娜住在罗马。"]) == ["安娜住在罗马。"]
    assert baselines.nearest_sentences(["?"], ["no end"]) == ["no end"]


def test_words_of_both_texts_are_words_of_their_own() -> None:
    assert baselines.join_pair("A dog", None) == "A dog"
    assert baselines.join_pair("A dog", "a cat") == "a dog a__2 cat__2 a__both"


def test_questions_have_a_figure(tmp_path: Path) -> None:
    row = '{"question": "Where does Anna live?", "context": "It rains. Anna lives in Rome.", '
    row += '"answers": {"text": ["Anna lives in Rome."], "answer_start": [10]}}\n'
    for split in ("train", "validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text(row.replace("Rome", split.title()[:4]).replace("10]", "10]"))
    opened = open_table(str(tmp_path))
    assert task_of(opened.task).kind == "question-answering"
    found = measure_baseline(opened, "test", "f1")
    assert found == Baseline(baselines.SENTENCE, "f1", 1.0)


def measured_with(metrics: dict[str, float], chance: dict[str, float], rows: int = 20) -> MeasuredModel:
    """A model with these figures, the first of which decides."""
    figures = {name: lambda draws, value=value: np.full(len(draws), value) for name, value in metrics.items()}
    scored = ScoredAnswers(rows, figures, chance=chance)
    return MeasuredModel(Subject("x", Path("x"), "student"), Measurement({}, {}), scored, next(iter(metrics)))


@pytest.mark.parametrize(
    ("value", "chance", "baseline", "said"),
    [
        (0.5, 0.4, 0.6, "accuracy 50.00 % is not above naive Bayes over words, 60.00 %"),
        (0.6, 0.6, 0.5, "accuracy 60.00 % is not above chance, 60.00 %"),
        (0.6 + 1e-15, 0.6, 0.5, "accuracy 60.00 % is not above chance, 60.00 %"),
        (0.5, 0.5, None, "accuracy 50.00 % is not above chance, 50.00 %"),
        (0.61, 0.6, 0.5, None),
        (0.61, 0.6, None, None),
        (0.9, 0.5, 1.0, "accuracy 90.00 % is not above naive Bayes over words, 100.00 %"),
        (1.0, 0.5, 1.0, None),
        (0.9, 1.0, None, None),
        (float("nan"), 0.5, 0.5, None),
    ],
)
def test_a_model_that_is_not_above_baseline_and_chance_is_told(
    value: float, chance: float, baseline: float | None, said: str | None
) -> None:
    rule = None if baseline is None else Baseline(baselines.BAYES, "accuracy", baseline)
    assert describe_weak(measured_with({"accuracy": value}, {"accuracy": chance}), rule) == said


def test_a_classifier_that_answers_the_most_frequent_class_is_told() -> None:
    opened = table("opinions", 20)
    rows = opened.split("test")
    common = np.bincount(np.asarray(rows.labels), minlength=len(opened.label_names)).argmax()
    logits = np.tile(np.eye(len(opened.label_names))[common], (len(rows), 1))
    scored = Classification()._score(logits, opened.label_names, rows)
    model = MeasuredModel(Subject("x", Path("x"), "student"), Measurement({}, {}), scored, "accuracy")
    assert "is not above chance" in (describe_weak(model, None) or "")
