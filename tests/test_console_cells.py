"""Values as cells of a table, and as JSON."""

from __future__ import annotations

import math

import pytest

from compress.console.cells import format_cell, is_figure
from compress.console.documents import collect_documents, document_sink, finite


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, "–"), (True, "yes"), (False, "no"), (9_999, "9,999"), (9999.4, "9999"), (9999.6, "10,000"),
        (-9999.9, "-10,000"), (12345.6, "12,346"), (0.0, "0"), (1.23456, "1.235"), (math.nan, "nan"),
        (math.inf, "inf"), ("a\nb", r"a\nb"),
    ],
)  # fmt: skip
def test_cells_are_short(value: object, shown: str) -> None:
    assert format_cell(value) == shown


def test_figures_stand_on_the_right() -> None:
    assert all(map(is_figure, (None, 3, 0.5, "", "–", "-1.2", "−1.2", "+3 points", "91.2 ± 0.4")))
    assert not any(map(is_figure, (True, "yes", "a 3", "(3)")))


def test_json_has_null_for_what_is_no_number() -> None:
    assert finite({1: [math.nan, (math.inf, 2.0)], "a": {"b": -math.inf}}) == {
        "1": [None, [None, 2.0]],
        "a": {"b": None},
    }


def test_documents_are_collected_by_the_innermost_block() -> None:
    with collect_documents() as outer:
        with collect_documents() as inner, pytest.raises(ValueError, match="x"), collect_documents():
            raise ValueError("x")
        assert document_sink.get() is outer is not inner
    assert document_sink.get() is None
