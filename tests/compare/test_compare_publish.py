"""What the page shows beside the figures: what a run left in the store, found by the names of its files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from compare_rows import row

from compress.compare import publish
from compress.compare.frontier import rank_rows
from compress.compare.gather import ComparedRows
from compress.compare.page import Detail
from compress.compare.publish import DETAILED, LARGEST_PICTURE, page_of
from compress.report.slice_table import slices_to_table
from compress.tracking.reading import StoredRun
from evaluation.quality.intervals import Interval
from evaluation.quality.slices import Slice

GROUPS = [
    Slice("country", name, 100, Interval(value, value - 0.02, value + 0.02, 100, 1000))
    for name, value in (("A", 0.9), ("B", 0.7))
]


class Reader:
    """Runs with files. below: runs under others."""

    def __init__(self, files: Mapping[str, Mapping[str, str]], below: Sequence[StoredRun] = ()) -> None:
        self.found, self.below = files, below

    def children(self, ids: Sequence[str]) -> list[StoredRun]:
        return [run for run in self.below if run.parent in ids]

    def files(self, run: StoredRun) -> list[str]:
        return sorted(self.found.get(run.run_id, {}))

    def text(self, run: StoredRun, name: str) -> str | None:
        return self.found.get(run.run_id, {}).get(name)


def stored(run_id: str, parent: str = "") -> StoredRun:
    return StoredRun(run_id, f"run {run_id}", "small", 0, "", tags={"mlflow.parentRunId": parent} if parent else {})


def as_table(columns: Sequence[str], data: Sequence[Sequence[object]]) -> str:
    return json.dumps({"columns": list(columns), "data": [list(line) for line in data]})


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page is made of."""
    found: dict[str, Any] = {}

    def page(title: str, judged: object, keys: object, notes: list[str], details: list[Detail]) -> str:
        found.update(title=title, notes=notes, details={detail.name: detail for detail in details})
        return ""

    monkeypatch.setattr(publish, "page", page)
    return found


def build(reader: Reader, runs: Sequence[StoredRun]) -> None:
    rows = [dataclasses.replace(row(run.name, 150 + i), run=run) for i, run in enumerate(runs)]
    judged, notes = rank_rows(rows)
    page_of(judged, ["name"], notes, ComparedRows(rows), reader)  # type: ignore[arg-type]


def test_pictures_of_a_run_and_of_its_stages_stand_in_the_order_of_the_page(told: dict[str, Any]) -> None:
    files = {
        "a": {"sweep.svg": "<svg>1", "waterfall.svg": "<svg>2", "notes.txt": "no picture", "other.svg": "<svg>unknown"},
        "b": {"cka-0.svg": "<svg>3", "reliability.svg": "<svg>of a stage", "cka.csv": "no picture"},
    }
    build(Reader(files, [stored("b", "a")]), [stored("a")])
    shown = [(picture.about, picture.svg) for picture in told["details"]["run a"].pictures]
    assert shown == [
        ("Cost and gain of each stage", "<svg>2"),
        ("Similarity of layers (CKA), run b", "<svg>3"),
        ("Quality versus size in a sweep", "<svg>1"),
    ]


def test_a_picture_that_is_too_large_is_left_out(told: dict[str, Any]) -> None:
    build(Reader({"a": {"cka.svg": "x" * (LARGEST_PICTURE + 1)}}), [stored("a")])
    assert told["details"]["run a"].pictures == []


def test_slices_groups_and_changed_predictions_of_a_run_are_read(told: dict[str, Any]) -> None:
    files = {
        "groups.json": as_table(*slices_to_table(GROUPS, "macro_f1")),
        "churn.json": as_table(["changed", "rows"], [["all rows", 3]]),
    }
    build(Reader({"a": files}), [stored("a")])
    detail = told["details"]["run a"]
    assert [(s.by, s.name, s.value.value) for s in detail.groups] == [("country", "A", 0.9), ("country", "B", 0.7)]
    assert detail.metric == "macro_f1"
    assert detail.churn == (["changed", "rows"], [["all rows", "3"]])
    assert list(detail.slices) == []


@pytest.mark.parametrize(
    "text", [None, "", "[1]", "{}", '{"columns": ["a"], "data": []}', '{"columns": ["a"], "data": [[1, 2]]}']
)
def test_a_file_that_is_no_table_shows_nothing(text: str | None, told: dict[str, Any]) -> None:
    files = {} if text is None else {"churn.json": text, "groups.json": text, "slices.json": text}
    build(Reader({"a": files}), [stored("a")])
    detail = told["details"]["run a"]
    assert (detail.churn, list(detail.slices), list(detail.groups)) == (None, [], [])


def test_details_are_of_a_few_rows_and_the_note_says_so(told: dict[str, Any]) -> None:
    runs = [stored(str(i)) for i in range(DETAILED + 2)]
    build(Reader({}), runs)
    assert len(told["details"]) == DETAILED
    assert f"are shown for {DETAILED} rows" in told["notes"][-1]
    assert f"run {DETAILED + 1}" in told["details"], "the best row is on the frontier"
    build(Reader({}), runs[:2])
    assert not any("are shown for" in note for note in told["notes"])


def test_the_title_names_an_experiment_that_all_rows_are_of(told: dict[str, Any]) -> None:
    build(Reader({}), [stored("a")])
    assert told["title"] == "1 model compared"
    rows = [row("x", 150, facts={"experiment": "small"}), row("y", 160, facts={"experiment": "small"})]
    rows = [dataclasses.replace(one, run=stored(one.name)) for one in rows]
    page_of(rank_rows(rows)[0], ["name"], [], ComparedRows(rows), Reader({}))  # type: ignore[arg-type]
    assert told["title"] == "2 models compared, experiment small"
