"""Tags of words: as many as words, read at the first token of each, scored as scikit-learn and by hand."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import accuracy_score, f1_score

from compress.data.batches.examples import Examples
from compress.data.batches.ragged import Ragged, bounds_of
from compress.data.reading.columns import RequestedColumns
from compress.data.reading.frame import Frame
from compress.data.tables.table import UNLABELLED, Rows
from compress.data.tasks.token_classification import Answer, Task, Word
from compress.errors import UserError

TASK = Task()
POS = ["NOUN", "VERB", "ADJ"]
CHUNKS = ["O", "B-PER", "I-PER"]


def rows_of(words: list[list[str]], tags: list[list[int]]) -> Rows:
    values = np.array([n for row in tags for n in row], dtype=np.int64)
    column = pa.chunked_array([pa.array(words, pa.list_(pa.string()))])
    return Rows({"words": column}, Ragged(values, bounds_of(map(len, tags))), np.arange(1, len(words) + 1))


def examples_of(words: list[list[int]], numbers: list[int]) -> Examples:
    """One window for each list: which word each token begins, -1 for none."""
    flat = np.array([n for row in words for n in row], dtype=np.int32)
    count = len(flat)
    return Examples(
        np.zeros(count, np.int32), bounds_of(map(len, words)), np.zeros(count, np.uint8), flat < 0,
        np.full(count, UNLABELLED), np.array(numbers), 0, "", words=flat,
    )  # fmt: skip


def logits_of(tags: list[int], classes: int) -> np.ndarray:
    """Ten for each tag, as `softmax` makes nearly one of it; zeros for -1."""
    return np.array([[10.0 * (tag == c) for c in range(classes)] for tag in tags])


TAGS = st.lists(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=5), min_size=1, max_size=6
)


@given(TAGS)
def test_scores_are_those_of_scikit_learn(pairs: list[list[tuple[int, int]]]) -> None:
    gold = [[g for g, _ in row] for row in pairs]
    said = [n for row in pairs for _, n in row]
    rows = rows_of([["w"] * len(row) for row in pairs], gold)
    examples = examples_of([[-1, *range(len(row)), -1] for row in pairs], list(range(1, len(pairs) + 1)))
    logits = logits_of([n for row in pairs for n in (-1, *(tag for _, tag in row), -1)], 3)
    found = TASK.score(logits, POS, examples, rows)
    flat = [n for row in gold for n in row]
    assert found.value("accuracy") == pytest.approx(accuracy_score(flat, said))
    expected = f1_score(flat, said, average="macro", zero_division=0)  # pyright: ignore[reportArgumentType]
    assert found.value("f1_macro") == pytest.approx(expected)
    assert found.baselines["majority_baseline"] == pytest.approx(max(map(flat.count, flat)) / len(flat))


def test_a_word_that_the_model_did_not_see_is_wrong() -> None:
    rows = rows_of([["a", "b", "c"]], [[0, 0, 0]])
    found = TASK.score(logits_of([-1, 0, -1], 3), POS, examples_of([[-1, 0, -1]], [1]), rows)
    assert found.value("accuracy") == pytest.approx(1 / 3)
    assert found.value("f1_macro") == pytest.approx(f1_score([0, 0, 0], [0, -1, -1], labels=[0], average="macro"))
    rows = rows_of([["a", "b", "c"]], [[0, 1, 2]])
    found = TASK.score(logits_of([-1, 0, -1], 3), POS, examples_of([[-1, 0, -1]], [1]), rows)
    assert found.value("f1_macro") == pytest.approx(1 / 3), "tags that no token could get are missed"


def test_entities_are_counted_whole() -> None:
    rows = rows_of([["anna", "lee", "ran"], ["bo", "sat", "up"]], [[1, 2, 0], [1, 0, 0]])
    examples = examples_of([[0, 1, 2], [0, 1, 2]], [1, 2])
    found = TASK.score(logits_of([1, 0, 0, 1, 0, 0], 3), CHUNKS, examples, rows)
    assert found.value("entity_f1") == pytest.approx(0.5), "'anna' is not 'anna lee', 'bo' is right"
    assert found.value("accuracy") == pytest.approx(5 / 6)
    assert TASK.list_metrics(CHUNKS) == ("entity_f1", "accuracy")
    assert TASK.list_metrics(POS) == ("accuracy", "f1_macro")


def test_windows_of_a_row_answer_it_together() -> None:
    examples = examples_of([[-1, 0, 1], [-1, 2], [0, -1]], [1, 1, 2])
    (first, second) = TASK.decode(logits_of([-1, 1, 2, -1, 1, 2, -1], 3), CHUNKS, examples, ["anna lee bo", "ran"])
    assert [(w.word, w.start, w.end, w.label) for w in first.words] == [
        ("anna", 0, 4, "B-PER"), ("lee", 5, 8, "I-PER"), ("bo", 9, 11, "B-PER")
    ]  # fmt: skip
    assert first.entities == (("PER", 0, 8, "anna lee"), ("PER", 9, 11, "bo"))
    assert [w.label for w in second.words] == ["I-PER"]
    assert second.entities == (), "I- without B- opens nothing"
    assert first.words[0].probability == pytest.approx(np.exp(10) / (np.exp(10) + 2))


def test_words_after_the_cut_have_no_tag() -> None:
    (answer,) = TASK.decode(logits_of([0], 3), POS, examples_of([[0]], [1]), ["one two"])
    assert [(w.label, w.probability) for w in answer.words][1] == (None, 0.0)
    assert answer.entities is None
    assert answer.line("") == "one/NOUN two/?"


def test_an_answer_as_json() -> None:
    word = Word("anna", 0, 4, "B-PER", 0.5)
    assert Answer((word,)).as_json() == {"words": [vars(word)]}
    assert Answer((word,), (("PER", 0, 4, "anna"),)).as_json()["entities"] == [
        {"type": "PER", "start": 0, "end": 4, "text": "anna"}
    ]


def test_outputs_of_another_width() -> None:
    with pytest.raises(UserError):
        TASK.decode(np.zeros((1, 2)), POS, examples_of([[0]], [1]), ["one"])


def test_labels_that_are_missing_or_too_many() -> None:
    words = pa.chunked_array([pa.array([["a", "b"], None, ["c"]], pa.list_(pa.string())), pa.array([["d"]])])
    missing = TASK.make_missing_labels({"words": words}, 4, POS)
    assert isinstance(missing, Ragged)
    assert missing.lengths.tolist() == [2, 0, 1, 1]
    assert TASK.find_unlabelled(missing).tolist() == [True, False, True, True]
    ((_, misfits),) = TASK.misfits(rows_of([["a", "b"], ["c"]], [[0], [0]])).items()
    assert misfits.tolist() == [True, False]


def test_sentences_that_hold_a_kind() -> None:
    rows = rows_of([["a", "b"], ["c"], ["d"]], [[1, 2], [0], [0]])
    assert [(m.name, m.inside.tolist()) for m in TASK.groups(rows, CHUNKS)] == [("PER", [True, False, False])]
    assert {m.name: m.inside.tolist() for m in TASK.groups(rows, POS)} == {
        "NOUN": [False, True, True], "VERB": [True, False, False], "ADJ": [True, False, False]
    }  # fmt: skip


def test_models_are_compared_at_words_alone() -> None:
    rows, examples = rows_of([["a", "b"], ["c"]], [[0, 0], [0]]), examples_of([[-1, 0, 1], [0, -1]], [1, 2])
    ours, theirs = logits_of([2, 0, 1, 0, 2], 3), logits_of([0, 0, 2, 0, 0], 3)
    found = TASK.compare(ours, theirs, POS, examples, rows)
    every = np.ones((1, 2))
    assert found.figures["agreement"](every)[0] == pytest.approx(2 / 3)
    p, q = (np.exp(x[2]) / np.exp(x[2]).sum() for x in (theirs, ours))
    assert found.figures["kl"](every)[0] == pytest.approx((p * np.log(p / q)).sum() / 3)


def test_the_baseline_is_the_usual_tag_of_a_word() -> None:
    train = rows_of([["run", "run", "run"], ["cat"], ["dog"]], [[1, 1, 0], [0], [0]])
    _, found = TASK.answer_by_baseline(train, rows_of([["run", "bird"]], [[1, 2]]), POS) or (None, None)
    assert found is not None
    assert found.value("accuracy") == 0.5, "run is a verb, and a new word a noun"


def test_the_columns_that_it_claims() -> None:
    lists, text = pa.chunked_array([pa.array([["a"]])]), pa.chunked_array([pa.array(["a"])])
    assert TASK.claims(Frame({"tokens": lists, "ner_tags": lists}, 1), RequestedColumns())
    assert not TASK.claims(Frame({"tokens": text, "ner_tags": lists}, 1), RequestedColumns())
    assert not TASK.claims(Frame({"tokens": lists}, 1), RequestedColumns())
    assert TASK.claims(Frame({"a": lists, "b": lists}, 1), RequestedColumns(text="a", label="b"))
