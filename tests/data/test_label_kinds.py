"""Labels that are not classes: scores, sets of labels, tags of words; and all that can be wrong with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compress.contracts import EncoderOutput
from compress.data.batches.examples import collate, join
from compress.data.batches.ragged import Ragged, bounds_of
from compress.data.reading.sources import open_table
from compress.data.tables.label_lists import illegal
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.objectives import hard_labels, soft_targets
from evaluation.quality.entities import repair, scheme_of

REST = [{"tokens": ["a"], "labels": ["O"]}]


def tags(folder, train, **options) -> Table:
    rest = options.pop("rest", REST)
    return open_table(str(folder(train=train, validation=rest, test=rest)), **options)


def tags_of(table: Table) -> Ragged:
    labels = table.split("train").labels
    assert isinstance(labels, Ragged)
    return labels


def plain(table: Table, split: str = "train") -> list:
    labels = table.split(split).labels
    assert isinstance(labels, np.ndarray)
    return labels.tolist()


def row(words: str, labels: str) -> dict:
    return {"tokens": words.split(), "labels": labels.split()}


# --- tags -------------------------------------------------------------------------------------------------------


def test_tags_are_read_by_name_in_lists_as_long_as_the_words(folder):
    table = tags(folder, [row("Ann saw Rome", "B-PER O B-LOC"), row("hi", "O"), row("New York", "B-LOC I-LOC")])
    assert table.task == "token-classification"
    assert table.columns == {"words": "tokens", "label": "labels"}
    assert table.label_names == ["B-LOC", "B-PER", "I-LOC", "O"]
    labels = tags_of(table)
    assert [labels.row(i).tolist() for i in range(3)] == [[1, 3, 0], [3], [0, 2]]
    assert labels[np.array([2, 0])].values.tolist() == [0, 2, 1, 3, 0]
    assert labels[np.array([2])].values.tolist() == [0, 2]


def test_columns_of_words_and_tags_can_be_named(folder):
    rows = [{"forms": ["a", "b"], "kind": ["X", "Y"], "tokens": "t", "labels": 1}] * 3
    table = tags(folder, rows, rest=rows, text_column="forms", label_column="kind")
    assert (table.task, table.label_names) == ("token-classification", ["X", "Y"])


def test_tags_may_be_numbers_with_names_from_a_model(folder):
    rows = [{"tokens": ["a", "b"], "ner_tags": [0, 2]}, {"tokens": ["c"], "ner_tags": [1]}]
    table = tags(folder, rows, rest=rows, expect_labels=["O", "B-x", "I-x"], bad_tags="repair")
    assert table.label_names == ["O", "B-x", "I-x"]
    assert tags_of(table).values.tolist() == [0, 1, 1]


def test_tags_that_begin_with_no_b_are_refused_with_row_and_word(folder):
    rows = [row("a b", "B-x I-x"), row("a b c", "O I-x O"), row("d", "I-x")]
    with pytest.raises(UserError) as caught:
        tags(folder, rows)
    told = str(caught.value).partition(": ")[2]
    assert told == (
        "train: 2 rows with tags that IOB2 does not allow (rows 2, 3): row 2, word 2: 'I-x' follows 'O'; repair them "
        "with --bad-tags repair (data.bad_tags: repair), or correct them"
    )


def test_tags_that_begin_with_no_b_are_repaired_when_asked_and_told(folder):
    rows = [row("a b", "B-x I-x"), row("a b c", "O I-x O"), row("d e", "I-y I-x")]
    table = tags(folder, rows, bad_tags="repair")
    labels, names = tags_of(table), table.label_names
    assert [names[n] for n in labels.values] == ["B-x", "I-x", "O", "B-x", "O", "B-y", "B-x"]
    assert any("2 rows with tags that IOB2 does not allow (rows 2, 3), repaired" in note for note in table.notes)
    assert "B-y" in names  # made by the repair


def test_a_repair_may_not_make_a_tag_that_a_model_lacks(folder):
    with pytest.raises(
        UserError, match=r"row 1: repairing needs the tag 'B-x', which is not among the labels: known: O, I-x"
    ):
        tags(folder, [row("a b", "I-x O")], expect_labels=["O", "I-x"], bad_tags="repair")


def test_bioes_is_told_from_iob2(folder):
    good = [row("a b c d", "S-x O B-x E-x"), row("a b c", "B-y I-y E-y")]
    assert tags(folder, good).task == "token-classification"
    with pytest.raises(UserError, match=r"BIOES does not allow \(row 2\): row 2, word 1: 'B-x' begins the row"):
        tags(folder, [*good, row("a b", "B-x O")][1:])


@given(st.sampled_from(["iob2", "bioes"]), st.lists(st.lists(st.integers(0, 8), max_size=7), min_size=1, max_size=6))
def test_a_sequence_is_illegal_exactly_where_a_repair_changes_it(scheme, rows):
    prefixes = "BI" if scheme == "iob2" else "BIES"
    names = ["O", *(f"{p}-{t}" for t in "xy" for p in prefixes)]
    assert scheme_of(names) == scheme
    lists = [[n % len(names) for n in row] for row in rows]
    made = Ragged(np.array([n for row in lists for n in row], dtype=np.int64), bounds_of(map(len, lists)))
    wrong = made.rows_with(illegal(made, names))
    spelled = [[names[n] for n in row] for row in lists]
    assert wrong.tolist() == [repair(row, scheme) != row for row in spelled]


def test_as_many_tags_as_words(folder):
    rows = [row("a b", "O O"), row("a b c", "O B-x"), row("d", "B-x")]
    with pytest.raises(
        UserError,
        match=r"train: 1 row with a different number of tags than words \(row 2\): column 'labels'; correct them, or",
    ):
        tags(folder, rows)
    assert len(tags(folder, rows, bad_rows="drop").split("train")) == 2


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"tokens": [], "labels": []}, r"train: 1 row without words \(row 2\): column 'tokens'"),
        ({"tokens": None, "labels": []}, r"train: 1 row without words \(row 2\)"),
        ({"tokens": ["a", None], "labels": ["O", "O"]}, r"1 word that is not text \(row 2\): the first is None"),
        ({"tokens": ["a", "b"], "labels": ["O", None]}, r"train: 1 row without a label \(row 2\)"),
        ({"tokens": ["a", 3], "labels": ["O", "O"]}, r"1 word that is not text \(row 2\): the first is 3"),
        ({"tokens": "a b", "labels": ["O", "O"]}, "each row needs a list of words: row 2 has 'a b'"),
        ({"tokens": ["a"], "labels": "O"}, "each row needs a list of tags: row 2 has 'O'"),
    ],
)
def test_bad_words(folder, bad, message):
    with pytest.raises(UserError, match=message):
        tags(folder, [row("a b", "O B-x"), bad], task="token-classification")
    with pytest.raises(UserError, match=message):  # the task is inferred all the same
        tags(folder, [row("a b", "O B-x"), bad])


def test_tags_outside_the_model(folder):
    with pytest.raises(UserError, match=r"the labels of the data and of the model differ: .*only in the data: B-z"):
        tags(folder, [row("a b", "O B-x"), row("a", "B-z")], expect_labels=["O", "B-x", "I-x"])
    with pytest.raises(
        UserError, match=r"labels that do not occur in train: 'B-z' in 1 row \(row 1, near 'B-x'\); known: B-x, O"
    ):
        tags(folder, [row("a b", "O B-x")], rest=[{"tokens": ["a"], "labels": ["B-z"]}])


# --- scores -----------------------------------------------------------------------------------------------------


def scores(folder, values, **options):
    rows = [{"sentence1": f"a {i}", "sentence2": "b", "score": value} for i, value in enumerate(values)]
    rest = [{"sentence1": "c", "sentence2": "d", "score": 1.5}, {"sentence1": "e", "sentence2": "d", "score": 2.5}]
    return open_table(str(folder(train=rows, validation=rest, test=rest)), **options)


def test_scores_are_numbers(folder):
    table = scores(folder, [0.0, 3.8, 5, "4.25"])
    assert (table.task, table.label_names) == ("regression", ["score"])
    assert table.columns["text_pair"] == "sentence2"
    assert plain(table) == [0.0, np.float32(3.8), 5.0, 4.25]
    assert scores(folder, [0.5, 1.0], expect_labels=["LABEL_0"]).label_names == ["LABEL_0"]


def test_single_texts_have_scores_too(folder):
    rows = [{"text": f"t {i}", "label": i / 4} for i in range(12)]
    table = open_table(str(folder(train=rows, validation=rows[:2], test=rows[2:4])))
    assert (table.task, table.columns) == ("regression", {"text": "text", "label": "label"})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None, 2.0], r"train: 1 row without a label \(row 2\): column 'score'"),
        ([1.0, float("nan"), 2.0], r"train: 1 row without a label \(row 2\)"),
        ([1.0, "high", 2.0, "low"], r"2 rows with a score that is not a number \(rows 2, 4\): the first is 'high'"),
        ([1.0, True, 2.0], r"1 row with a score that is not a number \(row 2\): the first is True"),
        ([1.0, [2.0], 2.0], r"1 row with a score that is not a number \(row 2\): the first is \[2.0\]"),
        ([1.0, 1e300, 2.0], r"1 row with a score too large for fp32 \(row 2\): the first is 1e\+300"),
        ([2.0, 2.0, 2.0], "every train row has the same score 2"),
    ],
)
def test_bad_scores(folder, values, message):
    with pytest.raises(UserError, match=message):
        scores(folder, values, task="regression")


def test_rows_without_a_score_may_be_dropped(folder):
    assert len(scores(folder, [1.0, None, 2.0], bad_rows="drop").split("train")) == 2


# --- sets of labels ---------------------------------------------------------------------------------------------


def several(folder, lists, **options):
    rows = [{"text": f"t {i}", "labels": labels} for i, labels in enumerate(lists)]
    rest = [{"text": "u", "labels": []}]
    return open_table(str(folder(train=rows, validation=rest, test=rest)), **options)


def test_sets_of_labels_are_marked_by_row_and_label(folder):
    table = several(folder, [["red", "blue"], [], ["blue", "blue"], ["green"]])
    assert (table.task, table.label_names) == ("multi-label", ["blue", "green", "red"])
    assert plain(table) == [[1, 0, 1], [0, 0, 0], [1, 0, 0], [0, 1, 0]]
    assert plain(table, "test") == [[0, 0, 0]]
    numbered = several(folder, [[0, 2], [1]], labels=["blue", "green", "red"])
    assert plain(numbered) == [[1, 0, 1], [0, 1, 0]]


@pytest.mark.parametrize("one", [1, 1.0, True, "1"])
@pytest.mark.parametrize(
    "lists", [[[1, 0, 1], [0, 0, 0], [0, 1, 0]], [[1, 1], [0, 1], [1, 0]], [[1, 0], [0, 1], [1, 0]]]
)
def test_a_0_or_1_for_each_label_is_not_the_ids_of_labels(folder, lists, one):
    names = ["red", "green", "blue"][: len(lists[0])]
    rows = [{"text": f"t {i}", "labels": [type(one)(v) for v in row]} for i, row in enumerate(lists)]
    data = str(folder(train=rows, validation=rows[:1], test=rows[1:]))
    table = open_table(data, expect_labels=names)
    assert table.label_names == names
    assert (plain(table), plain(table, "test")) == (lists, lists[1:])
    assert f"each row has a 0 or 1 for each of {len(names)} labels; those with a 1 apply" in table.notes


def test_a_0_or_1_for_other_labels(folder):
    rows = [{"text": f"t {i}", "labels": ones} for i, ones in enumerate([[1, 0, 1], [0, 1, 0]])]
    data = str(folder(train=rows, validation=rows, test=rows))
    with pytest.raises(UserError, match=r"each list has a 0 or 1 for 3 labels, but 4 are known: a, b, c, d; use data"):
        open_table(data, labels=["a", "b", "c", "d"])


def test_ids_of_two_labels_are_not_a_0_or_1_for_each(folder):
    assert plain(several(folder, [[0, 1], [1, 0], [1]])) == [[1, 1], [1, 1], [0, 1]]
    rows = [{"text": f"t {i}", "labels": ids} for i, ids in enumerate([[0, 1], [1, 0]])]
    data = str(folder(train=rows, validation=rows, test=rows))
    assert plain(open_table(data, labels=["a", "b", "c"])) == [[1, 1, 0], [1, 1, 0]]


def test_a_withheld_split_of_0_or_1_for_each_label(folder):
    rows = [{"text": f"t {i}", "labels": ones} for i, ones in enumerate([[1, 0, 1], [0, 0, 0], [0, 1, 0]])]
    table = open_table(str(folder(train=rows, validation=rows, test=[{"text": "t", "labels": [-1, -1, -1]}])))
    assert plain(table) == [[1, 0, 1], [0, 0, 0], [0, 1, 0]]


def test_a_0_or_1_for_some_labels_alone(folder):
    with pytest.raises(UserError, match="not all are equally long: they have 0, 3 values; write a 0 or 1 for each"):
        several(folder, [[1, 0, 1], [], [0, 1, 0]])


@pytest.mark.parametrize(
    ("lists", "options", "message"),
    [
        ([["red"], None, ["blue"]], {}, r"train: 1 row without a label \(row 2\): column 'labels'"),
        ([["red"], ["", "blue"]], {}, r"train: 1 row with an empty label in the list \(row 2\)"),
        (
            [["red"], ["blue"]],
            {"labels": ["red", "green"]},
            r"unknown labels: 'blue' in 1 row \(row 2\); known: red, green",
        ),
        ([[0], [7]], {"labels": ["red", "green"]}, r"label ids outside the range: '7' in 1 row \(row 2\)"),
        (
            [["red"], "blue"],
            {"task": "multi-label"},
            "each row needs a list of labels: row 2 has 'blue'",
        ),
    ],
)
def test_bad_sets_of_labels(folder, lists, options, message):
    with pytest.raises(UserError, match=message):
        several(folder, lists, **options)


# --- rows that only a teacher labels, and what a new head answers first ------------------------------------------

UNKNOWN = {
    "multi-label": {"text": "t", "labels": ["red"]},
    "regression": {"text": "t", "label": 1.5},
    "token-classification": {"tokens": ["good", "film"], "labels": ["O", "B-x"]},
}


@pytest.mark.parametrize("kind", UNKNOWN)
def test_rows_without_labels_join_those_with_them(folder, toy_tokenizer_files, kind):
    one = UNKNOWN[kind]
    other = {"labels": ["blue"]} if kind == "multi-label" else {"label": 2.5} if kind == "regression" else {}
    bare = {key: value for key, value in one.items() if key not in ("label", "labels")}
    rows = [one, one | other]
    table = open_table(str(folder(train=rows, validation=rows, test=rows, unlabelled=[bare, bare, bare])))
    assert table.task == kind
    task, tokenizer = task_of(kind), Tokenizer.from_files(toy_tokenizer_files)
    parts = [task.encode(tokenizer, table.split(s), max_length=8) for s in ("train", "unlabelled")]
    batch = collate(join(*parts), np.arange(5))
    outputs = table.label_names if kind != "regression" else ["score"]
    logits = torch.randn(batch.tokens if batch.answered is not None else 5, len(outputs))
    answer = EncoderOutput(torch.zeros(batch.tokens, 4), logits=logits)
    hard, soft = hard_labels.Objective(), soft_targets.Objective()
    labelled, taught = (4, 10) if batch.answered is not None else (2, 5)
    assert (hard.count(batch), soft.count(batch)) == (labelled, taught)
    assert torch.isfinite(hard(answer, None, batch))
    assert soft(answer, answer, batch).abs() < 1e-6


def test_a_new_head_answers_the_mean_score_and_how_often_a_label_applies():
    assert task_of("regression").first_guess(np.array([1.0, np.nan, 3.0], dtype=np.float32)) == [2.0]
    guess = task_of("multi-label").first_guess(np.array([[1.0, 0.0]] * 8))
    assert guess is not None
    assert (1 / (1 + np.exp(-guess))).tolist() == pytest.approx([0.9, 0.1])
    assert task_of("classification").first_guess(np.array([0, 1])) is None


def test_names_of_tags_come_from_the_features_of_a_saved_data_set(tmp_path):
    import datasets

    names = ["O", "B-PER", "I-PER"]
    features = datasets.Features(
        {
            "tokens": datasets.List(datasets.Value("string")),
            "pos_tags": datasets.List(datasets.ClassLabel(names=["X", "Y"])),
            "ner_tags": datasets.List(datasets.ClassLabel(names=names)),
        }
    )
    rows = [{"tokens": ["Ann", "Lee", "ran"], "pos_tags": [0, 0, 1], "ner_tags": [1, 2, 0]}] * 2
    made = datasets.Dataset.from_list(rows, features=features)
    saved = datasets.DatasetDict()
    for split in ("train", "validation", "test"):
        saved[split] = made
    saved.save_to_disk(str(tmp_path / "saved"))
    table = open_table(str(tmp_path / "saved"))
    assert (table.task, table.columns["label"], table.label_names) == ("token-classification", "ner_tags", names)
    other = open_table(str(tmp_path / "saved"), label_column="pos_tags")
    assert (other.task, other.label_names) == ("token-classification", ["X", "Y"])
