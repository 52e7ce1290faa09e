"""Which column is the text, which the label: by name, by usual names, by being the only text."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.data.reading import columns
from compress.data.reading.columns import LABEL, PAIRS, TEXT, RequestedColumns, TaskColumns
from compress.data.reading.frame import Frame
from compress.errors import UserError

PAIR = TaskColumns(("text", "text_pair"), optional=("text_pair",))
ANSWERS = TaskColumns(("question", "context"), usual={"question": ("question", "q"), "context": ("context", "passage")})


def frame(*names: str, **others: list[Any]) -> Frame:
    """One row: texts in the columns `names`, and whatever `others` hold."""
    return Frame.from_rows([{**{name: f"a {name}" for name in names}, **{k: v[0] for k, v in others.items()}}])


def infer(made: Frame, wanted: TaskColumns = PAIR, **asked: str) -> tuple[dict[str, str], list[str]]:
    return columns.roles(made, wanted, RequestedColumns(**asked), "reviews.csv")


@pytest.mark.parametrize("text", TEXT)
@pytest.mark.parametrize("label", LABEL)
def test_usual_names_are_found_whatever_their_case(text: str, label: str) -> None:
    found, notes = infer(frame(text.upper(), "other", label.title()), TaskColumns())
    assert found == {"text": text.upper(), "label": label.title()}
    assert notes == []


def test_a_header_with_blanks_after_its_commas() -> None:
    assert infer(frame("text ", " Label"), TaskColumns())[0] == {"text": "text ", "label": " Label"}
    assert infer(frame(" premise", "hypothesis"))[0] == {"text": " premise", "text_pair": "hypothesis"}
    with pytest.raises(UserError, match=r"the columns are: ' verse', prose"):
        infer(frame(" verse", "prose"), TaskColumns())


@pytest.mark.parametrize(("first", "second"), PAIRS)
def test_usual_pairs_are_two_texts(first: str, second: str) -> None:
    made = frame(second, first)
    assert columns.has_pair(made, RequestedColumns())
    assert infer(made)[0] == {"text": first, "text_pair": second}
    if first not in ("question", "query", "text", "sentence1", "text1"):  # the first of several pairs would be found
        assert infer(made, text=first, text_pair=second) == infer(made)


def test_one_that_is_named_brings_its_partner() -> None:
    made = frame("premise", "hypothesis", "note")
    assert infer(made, text_pair="hypothesis")[0] == {"text": "premise", "text_pair": "hypothesis"}
    with pytest.raises(UserError, match=r"cannot infer the text column.*the columns are: premise, hypothesis, note"):
        infer(made, text_pair="note")


def test_the_only_text_is_taken_and_said() -> None:
    found, notes = infer(frame("verse", label=[3], weight=[0.5]))
    assert found == {"text": "verse", "label": "label"}
    assert notes == ["text column: 'verse', the only column that contains text"]
    with pytest.raises(UserError, match=r"cannot infer the text column; name it with --text-column.*: verse, prose"):
        infer(frame("verse", "prose"))


def test_a_label_that_is_text_is_not_the_text() -> None:
    assert infer(frame("verse", "label"))[0] == {"text": "verse", "label": "label"}


def test_no_column_has_two_roles() -> None:
    with pytest.raises(UserError, match=r"the same column is given twice.*text = 'verse', label = 'verse'"):
        infer(frame("verse"), text="verse", label="verse")
    assert "label" not in infer(frame("category"), text="category")[0]


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(UserError, match=r"label column 'sentimant' not found.*did you mean 'sentiment'\?"):
        infer(frame("text", "sentiment"), label="sentimant")


def test_roles_of_other_tasks_have_their_own_usual_names() -> None:
    assert infer(frame("Q", "passage"), ANSWERS)[0] == {"question": "Q", "context": "passage"}
    assert infer(frame("passage", "asked"), ANSWERS, text="asked")[0]["question"] == "asked"
    with pytest.raises(UserError, match="cannot infer the context column"):
        infer(frame("q"), ANSWERS)
    optional = TaskColumns(ANSWERS.texts, optional=("context",), usual=ANSWERS.usual)
    assert infer(frame("q"), optional)[0] == {"question": "q"}


@given(st.lists(st.one_of(st.none(), st.integers(-(10**6), 10**6), st.floats(allow_nan=False, allow_infinity=False))))
def test_fractions_are_numbers_that_are_not_whole(values: list[float | None]) -> None:
    expected = any(value is not None and value % 1 != 0 for value in values)
    assert columns.holds_fractions(list(values)) == expected
    as_text = pa.chunked_array([pa.array(["" if v is None else repr(v) for v in values], pa.string())])
    assert columns.holds_fractions(as_text) == expected


@pytest.mark.parametrize("values", [["0.5", "good"], [0.5, True], [0.5, [1.0]], [0.5, 10**400]])
def test_what_is_no_number_makes_classes(values: list[Any]) -> None:
    assert not columns.holds_fractions(values)


def test_whole_numbers_in_arrow_are_not_read() -> None:
    assert not columns.holds_fractions(pa.chunked_array([pa.array([1, 2])]))
    assert columns.holds_fractions(pa.chunked_array([pa.array([1.0, 2.5])]))


def test_a_label_may_be_missing_only_where_rows_are_unlabelled() -> None:
    chosen = {"text": "text", "label": "label"}
    splits = {"train": frame("text", "label"), "unlabelled": frame("text")}
    columns.same_columns(splits, chosen, "data")
    with pytest.raises(UserError, match="split 'test' has no column 'label'"):
        columns.same_columns(splits | {"test": frame("text")}, chosen, "data")


def test_columns_that_tell_rows_apart() -> None:
    splits = {"train": frame("text", "label", "Genre", "author"), "test": frame("text", "label", "author")}
    chosen = {"text": "text", "label": "label"}
    assert columns.others(splits, chosen, ["author"], "data") == ["author", "Genre"]
    assert columns.others(splits, {**chosen, "label": "Genre"}, [], "data") == []
    with pytest.raises(UserError, match=r"column 'autor' not found in data.*did you mean 'author'\?") as error:
        columns.others(splits, chosen, {"autor": "--group-column"}, "data")
    assert error.value.where == "--group-column autor"


def test_many_columns_are_cut() -> None:
    assert columns.format_names([f"c{i}" for i in range(21)]).endswith("c19 …")
    assert columns.format_names(["a", "b"]) == "the columns are: a, b"
