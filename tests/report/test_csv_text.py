"""CSV that no spreadsheet computes, and that reads back as it was."""

from __future__ import annotations

import csv
import io

import pytest

from compress.report.csv_text import format_csv


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", " =1", "\u00a0=1", "＝1", "－1", "-", "\ttext"]
)
def test_a_text_that_a_spreadsheet_would_compute_is_marked_in_cells_and_heads(text: str) -> None:
    heads, cells = csv.reader(io.StringIO(format_csv([[text], [text]]), newline=""))
    assert heads == cells == [f"'{text}"]


@pytest.mark.parametrize("text", ["", "a=b", "1-2", "'=1", "a\rb", "a\nb", 'a"b', "a,b", "a\r\nb", "été"])
def test_other_texts_are_read_as_they_were(text: str) -> None:
    assert list(csv.reader(io.StringIO(format_csv([["x", text], ["y", "z"]]), newline=""))) == [["x", text], ["y", "z"]]


def test_numbers_stay_numbers_and_nothing_is_empty() -> None:
    assert format_csv([["a", "b", "c"], [-1.5, None, -2]]) == "a,b,c\n-1.5,,-2\n"
