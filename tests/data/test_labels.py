"""Labels as ids, names, booleans; the labels of a model; and what is refused, with counts and rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from compress.data.tables.label_order import have_same_labels
from compress.data.tables.labels import read_labels
from compress.data.tables.table import UNLABELLED
from compress.errors import UserError


def column(values):
    if len({type(v) for v in values} - {type(None)}) > 1:
        return list(values)
    return pa.chunked_array([pa.array(values)])


def read(train, test=None, **kw):
    columns = {"train": column(train)} if train is not None else {}
    if test is not None:
        columns["test"] = column(test)
    return read_labels(columns, "set", **kw)


@pytest.mark.parametrize(
    ("values", "names", "numbers"),
    [
        (["b", "a", "b"], ["a", "b"], [1, 0, 1]),
        ([1, 0, 2], ["0", "1", "2"], [1, 0, 2]),
        (["1", "0", "10", *"23456789"], [str(i) for i in range(11)], [1, 0, 10, *range(2, 10)]),
        ([True, False, True], ["false", "true"], [1, 0, 1]),
        ([1.0, 0.0, 1.0], ["0", "1"], [1, 0, 1]),
        (["1.0", "0.0", "1.0"], ["0", "1"], [1, 0, 1]),
        (["1.0", "1.1", "1.0"], ["1.0", "1.1"], [0, 1, 0]),
        (["é", "z", "é"], ["z", "é"], [1, 0, 1]),
    ],
)  # fmt: skip
def test_names_and_numbers(values, names, numbers):
    found = read(values)
    assert found.names == names
    assert found.numbers["train"].tolist() == numbers


def test_given_names_are_ids_in_order():
    assert read([1, 0], names=["neg", "pos"]).numbers["train"].tolist() == [1, 0]
    assert read(["pos", "neg"], names=["pos", "neg"]).numbers["train"].tolist() == [0, 1]
    stars = read([1, 5, 3], names=["1", "2", "3", "4", "5"])
    assert stars.numbers["train"].tolist() == [0, 4, 2]
    assert any("no train row has the label 2, 4" in n for n in stars.notes)


def test_categories_of_arrow():
    found = read_labels({"train": pa.chunked_array([pa.array(["x", "y", None, "x"]).dictionary_encode()])}, "set")
    assert found.names == ["x", "y"]
    assert found.numbers["train"].tolist() == [0, 1, UNLABELLED, 0]


def test_missing_is_unlabelled():
    nan = float("nan")
    assert read([1.0, nan, 0.0]).numbers["train"].tolist() == [1, UNLABELLED, 0]
    assert read(["a", "", "b", "  "]).numbers["train"].tolist() == [0, UNLABELLED, 1, UNLABELLED]


@pytest.mark.parametrize("hidden", [[-1, -1], [None, None]])
def test_hidden_labels(hidden):
    test = pa.chunked_array([pa.array(hidden, pa.int64())])
    found = read_labels({"train": column([0, 1]), "test": test}, "set")
    assert found.hidden == ["test"]
    assert "test" not in found.numbers


@pytest.mark.parametrize(
    ("train", "test", "more", "message"),
    [
        ([1, "a", 2, True], None, {}, r"set: train: .* mixed types: 1 bool \(row 4\), 2 int \(rows 1, 3\), 1 str"),
        ([0, 0, 0], None, {}, r"every train row has the same label '0'; at least two"),
        ([0.5, 1.0, 2.25], None, {}, r"train: label 0.5 is not a class: row 1; scores belong to a regression task"),
        ([1, 2, 3], None, {}, r"not 0 to n-1: found 1, 2, 3; name the classes \(--labels 1,2,3\)"),
        ([0, 1, -1, -1], None, {}, r"train: label -1 in 2 rows: rows 3, 4; ids start at 0"),
        ([0, 1], [0, 2, 2], {}, r"outside the range.*\(rows 2, 3\); give the names \(0, 1\), or their ids 0 to 1"),
        ([0, 1], [0, -1], {}, r"test: label ids outside the range: '-1' in 1 row \(row 2\)"),
        (["pos", "neg"], ["pos", "positve"], {}, r"in train: 'positve' in 1 row \(row 2, near 'pos'\); known: neg"),
        (["pos", "neg"], ["pos", "psos"], {}, r"'psos' in 1 row \(row 2, near 'pos'\)"),
        (["a", "b"], [0, 1], {}, r"the splits write their labels differently: train: str, test: int"),
        ([0, 1, 2], None, {"names": ["a", "b"]}, r"train: label ids outside .*names \(a, b\), or their ids 0"),
        (["a", "c"], None, {"names": ["a", "b"]}, r"unknown labels: 'c' in 1 row"),
        ([0, 1], None, {"names": ["a", "a"]}, r"there must be at least two label names, all different: a, a"),
        ([f"id {i}" for i in range(50)], None, {}, r"does not look like labels: 50 different values in 50 rows"),
        (["9" * 5000, "1", "0"], ["9" * 400 + "1"], {}, r"labels that do not occur in train: '9{39}…' in 1 row"),
        ([[0], [1]], None, {}, r"the labels are lists or objects"),
        ([None, None], None, {}, r"no row has a label"),
    ],
)  # fmt: skip
def test_refused(train, test, more, message):
    with pytest.raises(UserError, match=message) as caught:
        read(train, test, **more)
    assert "\n" not in caught.value.line()


def test_labels_without_any_value():
    with pytest.raises(UserError, match="no row has a label"):
        read_labels({"train": pa.chunked_array([pa.nulls(3)])}, "set")


# --- a model's labels -------------------------------------------------------------------------------------------


def test_the_model_s_order_is_kept_by_name():
    found = read(["neg", "pos", "neg"], expected=["pos", "neg"])
    assert found.names == ["pos", "neg"]
    assert found.numbers["train"].tolist() == [1, 0, 1]
    assert any("matched by name" in n for n in found.notes)
    ids = read([0, 1, 1], names=["neg", "pos"], expected=["pos", "neg"])
    assert ids.numbers["train"].tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("values", "model"),
    [
        ([False, True, True], ["False", "True"]),
        (["No ", "yes", "yes"], ["no", "yes"]),
        (["0", "1", "1"], ["0.0", "1.0"]),
        (["Yes", "no", "no"], ["yes", "no"]),
    ],
)
def test_labels_that_another_program_spelled_are_the_same(values, model):
    found = read(values, expected=model)
    assert found.names == model
    assert found.numbers["train"].tolist() == [0, 1, 1]
    assert any("spelled differently" in n for n in found.notes)


def test_a_blank_that_makes_another_class_is_told():
    found = read(["pos", "pos ", "neg", "neg"])
    assert found.names == ["neg", "pos", "pos "]
    assert "these labels differ only in their spelling, and are different classes: 'pos', 'pos '" in found.notes
    assert not any("spelling" in note for note in read(["pos", "neg", "neg"]).notes)


def test_labels_that_differ_in_their_case_alone_are_not_guessed():
    with pytest.raises(UserError, match=r"the labels of the data and of the model differ.*--label-column"):
        read(["us", "US", "us"], expected=["us", "Us"])


def test_text_of_whole_floats_is_an_id_unless_it_is_a_name():
    found = read(["1.0", "0.0"], expected=["neg", "pos"])
    assert found.names == ["neg", "pos"]
    assert found.numbers["train"].tolist() == [1, 0]
    assert "the labels were written as 0.0, 1.0 …; read as whole numbers" in found.notes
    assert read(["2.0", "1.0"], names=["1.0", "2.0"]).numbers["train"].tolist() == [1, 0]


@pytest.mark.parametrize("kind", [int, float, str, lambda v: f"{v}.0"])
@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.parametrize("step", [1, -1])
def test_numbers_that_a_model_has_as_names(kind, count, step):
    names = [str(v) for v in range(1, count + 1)][::step]
    stars = [1, count, 3, *range(1, count + 1)]
    found = read([kind(v) for v in stars], expected=names)
    assert found.names == names
    assert [names[i] for i in found.numbers["train"].tolist()] == [str(v) for v in stars]


def test_a_number_that_is_no_name_does_not_make_ids_of_the_others():
    with pytest.raises(UserError, match="test: labels that do not occur in train: '0' in 1 row"):
        read([1, 2, 3, 4, 5], [0, 1, 5], expected=["1", "2", "3", "4", "5"])


def test_ten_labels_without_names_are_in_the_order_of_their_numbers():
    texts = [f"LABEL_{i}" for i in range(11)]
    found = read(texts, expected=list("abcdefghijk"))
    assert found.names == list("abcdefghijk")
    assert found.numbers["train"].tolist() == list(range(11))


@pytest.mark.parametrize(
    ("ours", "theirs", "same"),
    [
        (["neg", "pos"], ["neg", "pos"], True),
        (["pos", "neg"], ["neg", "pos"], False),
        (["LABEL_0", "LABEL_1"], ["neg", "pos"], True),
        (["neg", "pos"], ["0", "1"], True),
        (["LABEL_0", "LABEL_1"], ["a", "b", "c"], False),
        (["1", "2", "3"], ["3", "2", "1"], False),
        (["0", "1"], ["1", "0"], False),
        (["0", "1"], ["LABEL_0", "LABEL_1"], True),
    ],
)
def test_same_labels(ours, theirs, same):
    assert have_same_labels(ours, theirs) == same


def test_names_are_taken_from_the_side_that_has_them():
    assert read([0, 1], expected=["neg", "pos"]).names == ["neg", "pos"]
    found = read(["neg", "pos"], expected=["LABEL_0", "LABEL_1"])
    assert found.names == ["neg", "pos"]
    assert any("matched by id" in n for n in found.notes)


def test_fewer_labels_than_the_model_knows():
    found = read(None, ["b", "c"], expected=["a", "b", "c"])
    assert found.numbers["test"].tolist() == [1, 2]
    assert read([0, 2], expected=["a", "b", "c"]).names == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("values", "expected", "message"),
    [
        (["pos", "neg"], ["pos", "neutral"], r"2, the model 2; only in the data: neg; only in the model: neutral"),
        (["a", "b", "c"], ["a", "b"], r"the data has 3, the model 2; only in the data: c"),
        ([0, 1, 2], ["a", "b"], r"the labels of the data and of the model differ"),
        (["a", "b", "c"], ["LABEL_0", "LABEL_1"], r"the data has 3, the model 2"),
    ],
)  # fmt: skip
def test_labels_of_another_model(values, expected, message):
    with pytest.raises(UserError, match=message):
        read(values, expected=expected)
