"""Groups of rows that slices are told of: by length, by right answer of every kind of task, by a column."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from compress.data.reading.sources import open_table
from compress.data.tables.groups import columns_of, groups
from compress.data.tasks import task_of
from compress.errors import UserError


def table(folder: Path, rows: list[dict], **how):
    for split in ("train", "validation", "test"):
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        (folder / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return open_table(str(folder), **how)


def told(made, asked=None) -> dict[tuple[str, str], list[int]]:
    found = groups(task_of(made.task), made.split("test"), made.label_names, asked)
    return {(m.by, m.name): np.flatnonzero(m.inside).tolist() for m in found}


def texts(count: int) -> list[str]:
    return [f"{'very ' * i}good {i:02}" for i in range(count)]


def test_length_label_and_the_usual_column_of_a_source(tmp_path: Path) -> None:
    rows = [{"text": t, "label": "ab"[i % 2], "domain": "xyz"[i % 3], "id": i} for i, t in enumerate(texts(12))]
    found = told(table(tmp_path, rows))
    assert found["label", "a"] == [0, 2, 4, 6, 8, 10]
    assert found["domain", "y"] == [1, 4, 7, 10]
    assert found["characters", "lowest quarter, 7 to 17"] == [0, 1, 2]
    assert {by for by, _ in found} == {"characters", "label", "domain"}


def test_a_column_of_ones_own_and_quarters_of_numbers(tmp_path: Path) -> None:
    rows = [
        {"text": t, "label": "ab"[i % 2], "year": 1990 + i, "stars": i % 3, "who": {5: None, 7: " "}.get(i, "me")}
        for i, t in enumerate(texts(12))
    ]
    made = table(tmp_path, rows, others=columns_of(["year", "length", "stars", "who"]))
    found = told(made, ["year", "stars", "who"])
    assert found["year", "highest quarter, 1,999 to 2,001"] == [9, 10, 11]
    assert found["stars", "2"] == [2, 5, 8, 11]
    assert found["who", "(none)"] == [5, 7], "as of an empty cell of a CSV file"
    assert {by for by, _ in found} == {"year", "stars", "who"}


def test_columns_travel_with_rows_that_are_dropped_limited_or_mistyped(tmp_path: Path) -> None:
    from compress.contracts import NoiseSpec
    from compress.data.text.noise import add_typos_to_rows

    rows = [{"text": t, "label": "ab"[i % 2], "place": f"p{i}"} for i, t in enumerate(texts(12))]
    rows[3]["text"] = ""
    made = table(tmp_path, rows, others=["place"], bad_rows="drop", limit=6)
    part = made.split("test")
    assert [f"p{n - 1}" for n in part.numbers] == part.others["place"].to_pylist()
    assert add_typos_to_rows(part, NoiseSpec(rate=0.5), np.random.default_rng(0)).others is part.others


def test_an_unknown_column_and_one_with_a_value_for_each_row(tmp_path: Path) -> None:
    rows = [{"text": t, "label": "ab"[i % 2], "key": f"k{i}"} for i, t in enumerate(texts(120))]
    with pytest.raises(UserError, match=r"--slice kye: column 'kye' not found in .*; did you mean 'key'\?"):
        table(tmp_path, rows, others=["kye"])
    made = table(tmp_path, rows, others=["key"])
    with pytest.raises(UserError, match="--slice key: the column has more than 100 different values; use a column"):
        told(made, ["key"])
    with pytest.raises(UserError, match="--slice place: column not found"):
        told(made, ["place"])


def test_several_labels_a_row(tmp_path: Path) -> None:
    rows = [{"text": t, "labels": [["a"], ["a", "b"], []][i % 3]} for i, t in enumerate(texts(12))]
    found = told(table(tmp_path, rows, task="multi-label"), ["label"])
    assert found["label", "a"] == [0, 1, 3, 4, 6, 7, 9, 10]
    assert found["label", "b"] == [1, 4, 7, 10]


def test_scores(tmp_path: Path) -> None:
    rows = [{"text": t, "score": i / 2} for i, t in enumerate(texts(12))]
    found = told(table(tmp_path, rows, task="regression"), ["label"])
    assert found["score", "lowest quarter, 0.00 to 1.00"] == [0, 1, 2]


def test_tags(tmp_path: Path) -> None:
    kinds = (["B-PER", "O"], ["O", "B-LOC"], ["O", "O"], ["B-PER", "B-LOC"])
    rows = [{"tokens": ["anna", f"x{i}"], "ner_tags": kinds[i % 4]} for i in range(12)]
    made = table(tmp_path, rows)
    found = told(made, ["label"])
    assert found == {("entity", "PER"): [0, 3, 4, 7, 8, 11], ("entity", "LOC"): [1, 3, 5, 7, 9, 11]}
    assert ("characters", "6") in told(made), "of anna and x0"


def test_questions(tmp_path: Path) -> None:
    rows = []
    for i in range(12):
        answer = {"answers": [["anna"], [], ["anna is"], []][i % 4], "answer_starts": [[0], []][i % 2]}
        rows.append({"question": f"who is number {i}?", "context": f"anna is number {i}.", **answer})
    found = told(table(tmp_path, rows, task="question-answering"), ["label"])
    assert found["answer", "no answer"] == [1, 3, 5, 7, 9, 11]
    assert found["characters of the answer", "4"] == [0, 4, 8]
    assert found["characters of the answer", "7"] == [2, 6, 10]
