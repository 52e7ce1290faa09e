"""Slices as a table that MLflow shows, written and read."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from compress.report.slice_table import COLUMNS, slices_from_json, slices_to_table
from evaluation.quality.draws import of_mean
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Answers, Slice, by_value, slices

RANDOM = np.random.default_rng(0)
GROUP = np.repeat(["short", "long", "few"], [100, 100, 5])
RIGHT = RANDOM.random(205) < 0.9
OURS = RIGHT & ~((GROUP == "short") & (RANDOM.random(205) < 0.5))


def found(parent: bool) -> list[Slice]:
    theirs = Answers(of_mean(RIGHT), RIGHT) if parent else None
    return slices(by_value("length", GROUP), Answers(of_mean(OURS), OURS), theirs)


def text(slices: list[Slice], metric: str = "accuracy") -> str:
    columns, rows = slices_to_table(slices, metric)
    return json.dumps({"columns": list(columns), "data": rows})


def rounded(one: Slice) -> Slice:
    def short(value: object) -> object:
        if isinstance(value, Interval):
            return dataclasses.replace(value, **{k: short(getattr(value, k)) for k in ("value", "low", "high")})
        return float(f"{value:.6g}") if isinstance(value, float) else value

    return Slice(**{key: short(value) for key, value in vars(one).items()})


@pytest.mark.parametrize("parent", [True, False])
def test_what_is_written_is_read(parent: bool) -> None:
    slices = found(parent)
    metric, again = slices_from_json(text(slices))
    assert metric == "accuracy"
    assert again == [rounded(one) for one in slices]
    assert [one.verdict for one in again] == [one.verdict for one in slices]


def test_a_row_says_all_that_is_known_of_a_slice() -> None:
    columns, rows = slices_to_table(found(parent=True), "accuracy")
    assert columns == COLUMNS
    assert all(len(row) == len(columns) for row in rows)
    by_name = {row[1]: dict(zip(columns, row, strict=True)) for row in rows}
    short = by_name["short"]
    assert (short["by"], short["rows"], short["metric"], short["verdict"]) == ("length", 100, "accuracy", "fails more")
    assert short["low"] < short["value"] < short["high"]
    assert short["difference"] == pytest.approx(short["value"] - short["parent"])
    few = by_name["few"]
    assert (few["value"], few["difference"], few["note"]) == (None, None, "fewer than 30 rows")


def test_the_form_of_version_0_1_is_read() -> None:
    slices = found(parent=True)
    old = json.dumps({"metric": "accuracy", "slices": [one.as_json() for one in slices]})
    assert slices_from_json(old) == ("accuracy", slices)


@pytest.mark.parametrize(
    "content",
    [None, "", "[", "[]", "3", "{}", '{"columns": ["by"], "data": [["x"]]}', '{"slices": [5], "metric": "f1"}'],
)
def test_other_content_is_no_table(content: str | None) -> None:
    assert slices_from_json(content) == ("", [])


def test_a_table_without_rows() -> None:
    assert slices_from_json(text([])) == ("", [])
