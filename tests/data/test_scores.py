"""Score columns as numbers; what is no number is reported with its row."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compress.data.tables.scores import read_scores
from compress.errors import UserError

FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


def read(values: list[Any]) -> np.ndarray:
    """Of a split whose scores may all be the same."""
    found = read_scores({"validation": values}, "set").numbers["validation"]
    assert isinstance(found, np.ndarray)
    return found


@given(st.lists(st.one_of(FLOATS, st.none(), st.integers(-999, 999)), min_size=1))
def test_numbers_and_their_text_read_alike(values: list[float | None]) -> None:
    values = [0.25, *values]  # else all could be missing
    as_text = [None if value is None else f" {value!r} " for value in values]
    expected = np.array([math.nan if value is None else value for value in values], np.float32)
    np.testing.assert_array_equal(read(values), expected)
    np.testing.assert_array_equal(read(as_text), expected)


def test_blank_text_and_nan_are_no_score() -> None:
    np.testing.assert_array_equal(read([0.5, "", "  ", math.nan, "nan"]), [0.5] + [math.nan] * 4)


@pytest.mark.parametrize("hidden", [[None, None], [-1, -1], [-1.0, None]])
def test_withheld_scores(hidden: list[Any]) -> None:
    found = read_scores({"train": [0.0, 1.0], "test": hidden}, "set")
    assert found.hidden == ["test"]
    assert "test" not in found.numbers
    assert not read_scores({"train": [0.0, 1.0], "test": []}, "set").hidden, "no rows, nothing withheld"


@pytest.mark.parametrize("wrong", ["good", True, [1], {"a": 1}])
def test_what_is_no_number(wrong: Any) -> None:
    with pytest.raises(UserError) as error:
        read([0.5, wrong, 1, wrong])
    assert str(error.value).startswith("set: validation: 2 rows with a score that is not a number (rows 2, 4): ")
    assert f"the first is {wrong!r}" in str(error.value)


@pytest.mark.parametrize("beyond", [1e39, -1e39, math.inf, "-inf", 10**400])
def test_what_fp32_cannot_hold(beyond: Any) -> None:
    with pytest.raises(UserError, match=r"validation: 1 row with a score .*\(row 2\)"):
        read([0.5, beyond])


def test_scores_must_differ_in_training() -> None:
    with pytest.raises(UserError, match=r"^set: every train row has the same score 0.5; scores must differ$"):
        read_scores({"train": [0.5, None, 0.5]}, "set")


def test_the_name_of_the_score() -> None:
    columns = {"train": [0.0, 1.0]}
    assert read_scores(columns, "set").names == ["score"]
    assert read_scores(columns, "set", names=["rating"]).names == ["rating"]
    assert read_scores(columns, "set", names=["rating"], expected=["stars"]).names == ["stars"]
    with pytest.raises(UserError, match="regression has no label names: found 2; remove them"):
        read_scores(columns, "set", names=["a", "b"])
