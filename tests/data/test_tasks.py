"""Tasks: every file is a kind; rows become examples, logits become answers."""

from __future__ import annotations

from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from compress.data.batches.examples import Examples, join
from compress.data.batches.ragged import Ragged
from compress.data.reading.sources import open_table
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.task import ERRORS, Task
from compress.data.tasks import kinds, task_of
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError


@pytest.fixture
def tokenizer(toy_tokenizer_files) -> Tokenizer:
    return Tokenizer.from_files(toy_tokenizer_files)


@pytest.mark.parametrize("kind", kinds())
def test_every_kind_keeps_the_protocol(kind):
    task = task_of(kind)
    assert task.kind == kind
    assert isinstance(task, Task)
    assert set(task.optional_roles) <= set(task.text_roles)
    assert set(task.choose_metrics(["O", "B-x"])) & set(task.metrics)


LABELS = {"token-classification": ["O", "B-x"], "regression": [], "question-answering": []}


@pytest.mark.parametrize("kind", kinds())
def test_any_metric_of_a_kind_may_decide(kind):
    names = LABELS.get(kind, ["no", "yes"])
    usual = task_of(kind).choose_metrics(names)
    for chosen in usual:
        if chosen in ERRORS:
            continue
        task = task_of(kind, {"metric": chosen})
        assert task.choose_metrics(names)[0] == chosen
        assert set(task.choose_metrics(names)) == set(usual)
        assert task.list_metrics(names) == usual
    assert task_of(kind, {"metric": None}).choose_metrics(names) == task_of(kind).choose_metrics(names) == usual
    for unknown in ("acuracy", 3, *ERRORS):
        with pytest.raises(UserError, match="has no metric"):
            task_of(kind, {"metric": unknown}).choose_metrics(names)


def test_a_metric_of_two_labels_does_not_judge_three():
    task = task_of("classification", {"metric": "f1_binary"})
    assert task.choose_metrics(["no", "yes"])[0] == "f1_binary"
    with pytest.raises(UserError, match=r"classification with 3 labels has no metric 'f1_binary'; known: accuracy"):
        task.choose_metrics(["no", "perhaps", "yes"])


@pytest.mark.parametrize("kind", [kind for kind in kinds() if kind not in ("embedding", "question-answering")])
def test_an_output_that_is_no_number_is_not_scored(kind):
    """The largest of NaNs is the first class: it would count as an answer."""
    own = {"regression": ["score"], "reranking": ["score"], "token-classification": ["O", "B-x"]}
    names = own.get(kind, ["no", "yes"])
    labels = {
        "regression": np.zeros(2, np.float32),
        "multi-label": np.zeros((2, 2), np.float32),
        "token-classification": Ragged(np.zeros(2, np.int64), np.arange(3)),
    }.get(kind, np.zeros(2, np.int64))
    rows = Rows({"text": pa.chunked_array([["a", "b"]])}, labels, np.arange(1, 3))
    logits = np.zeros((2, len(names)), np.float32)
    logits[1] = np.nan
    with pytest.raises(UserError, match=r"^row 2: the model's output contains NaN or infinity; check its weights$"):
        task_of(kind).score(logits, names, cast(Examples, None), rows)


def test_unknown_kind():
    with pytest.raises(UserError, match=r"did you mean 'pair_classification'|did you mean 'pair-classification'"):
        task_of("pair-clasification")


def test_rows_become_examples(folder, tokenizer):
    train = [{"text": "good film", "label": 1}, {"text": "bad", "label": 0}, {"text": "", "label": 1}]
    rest = [{"text": "it", "label": 0}]
    table = open_table(str(folder(train=train, validation=rest, test=rest)))
    made = task_of(table.task).encode(tokenizer, table.split("train"), max_length=16)
    assert made.lengths.tolist() == [4, 3, 2]
    assert made.labels.tolist() == [1, 0, 1]
    assert made.numbers.tolist() == [1, 2, 3]
    assert made.special.tolist() == [True, False, False, True, True, False, True, True, True]
    again = task_of(table.task).encode(tokenizer, table.split("train"), max_length=16)
    assert again.fingerprint == made.fingerprint
    assert task_of(table.task).encode(tokenizer, table.split("train"), max_length=8).fingerprint != made.fingerprint


def test_pairs_have_two_segments(tokenizer):
    task = task_of("pair-classification")
    made = task.encode_texts(tokenizer, ["good film"], ["bad"], max_length=16)
    assert made.segments.tolist() == [0, 0, 0, 0, 1, 1]
    assert made.labels.tolist() == [UNLABELLED]
    cut = task.encode_texts(tokenizer, ["good film was not very good"], ["bad"], max_length=6)
    assert cut.lengths.tolist() == [6]
    assert cut.segments.tolist() == [0, 0, 0, 0, 1, 1]  # the longer one was cut
    assert cut.cut == 1


def test_texts_must_fit_the_task(tokenizer):
    with pytest.raises(UserError, match="a model for classification needs single texts: found pairs of texts"):
        task_of("classification").encode_texts(tokenizer, ["a"], ["b"], max_length=8)
    with pytest.raises(UserError, match="a model for pair-classification needs pairs of texts: found single texts"):
        task_of("pair-classification").encode_texts(tokenizer, ["a"], max_length=8)
    with pytest.raises(UserError, match="there are no rows to encode"):
        task_of("classification").encode_texts(tokenizer, [], max_length=8)


def test_take_and_join(tokenizer):
    task = task_of("classification")
    made = task.encode_texts(tokenizer, ["good", "bad film", "it was not very good"], max_length=16)
    part = made.take([2, 0])
    assert part.lengths.tolist() == [made.lengths[2], made.lengths[0]]
    assert part.ids[: part.offsets[1]].tolist() == made.ids[made.offsets[2] :].tolist()
    both = join(made, part)
    assert len(both) == 5
    assert both.ids[both.offsets[3] :].tolist() == part.ids.tolist()
    assert len({made.fingerprint, part.fingerprint, both.fingerprint}) == 3


def test_answers(tokenizer):
    task, none = task_of("classification"), task_of("classification").encode_texts(tokenizer, ["a"], max_length=8)
    answers = task.decode(np.array([[0.0, np.log(3.0)], [1000.0, 0.0]]), ["no", "yes"], none, [])
    assert [a.label for a in answers] == ["yes", "no"]
    assert answers[0].probability == pytest.approx(0.75)
    assert answers[1].probabilities == pytest.approx({"no": 1.0, "yes": 0.0})
    with pytest.raises(UserError, match="do not match its labels: 3 logits per row, 2 names"):
        task.decode(np.zeros((1, 3)), ["a", "b"], none, [])
    with pytest.raises(UserError, match="row 2: the model's output contains NaN or infinity"):
        task.decode(np.array([[0.0, 1.0], [np.nan, 0.0]]), ["a", "b"], none, [])


def test_sst2_is_encoded(data_dir, minilm):
    table = open_table(str(data_dir / "sst2"))
    made = task_of("classification").encode(Tokenizer.load(minilm), table.split("train"), max_length=64)
    assert len(made) == 66962
    assert 13 < made.lengths.mean() < 14


@pytest.mark.parametrize("kind", kinds())
def test_the_command_for_a_model_of_pairs_gives_two_texts(kind):
    task = task_of(kind)
    paired = "--pair" in task.example_for(["text", "text_pair", "label"])
    assert paired == (kind in ("multi-label", "pair-classification", "regression"))
    assert task.example_for(["text", "label"]) == task.example
