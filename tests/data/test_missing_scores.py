"""A missing label does not decide whether labels are classes or scores."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from compress.data.reading.columns import RequestedColumns, holds_fractions
from compress.data.reading.frame import Frame
from compress.data.tasks import task_of


def column(values: list[Any], kind: pa.DataType | None = None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(values, kind)])


@pytest.mark.parametrize("missing", [None, float("nan")])
def test_of_numbers(missing: float | None) -> None:
    assert not holds_fractions(column([1.0, missing, 0.0], pa.float64()))
    assert not holds_fractions([1, missing, 0])
    assert holds_fractions(column([1.0, missing, 0.5], pa.float64()))


@pytest.mark.parametrize("blank", ["", " ", "\t\n"])
def test_of_text(blank: str) -> None:
    assert not holds_fractions(column(["3", blank, "1"]))
    assert holds_fractions(column(["0.5", blank, "1"]))


def test_the_task_of_a_table_follows() -> None:
    texts, regression = column(["a", "b", "c"]), task_of("regression")
    classes = Frame({"text": texts, "label": column([1.0, float("nan"), 0.0])}, 3)
    scores = Frame({"text": texts, "label": column(["0.5", " ", "1"])}, 3)
    assert regression.claims(classes, RequestedColumns()) == 0
    assert regression.claims(scores, RequestedColumns()) > 0
