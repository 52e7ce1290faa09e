"""Data in memory: every form of the same rows is read as the same table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compress
from compress.api.data_input import data_name
from compress.data.reading.sources import open_table


@pytest.mark.usefixtures("place")
def test_every_form_is_the_same_table(splits: Any) -> None:
    import datasets
    import pandas

    forms = [
        splits,
        {split: pandas.DataFrame(rows) for split, rows in splits.items()},
        datasets.DatasetDict({split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}),
    ]
    tables = [open_table(data_name(form)) for form in forms]
    assert len({table.fingerprint for table in tables}) == 1
    assert not [note for table in tables for note in table.notes if "not read" in note], "of the copy's own files"


@pytest.mark.usefixtures("place")
def test_equal_rows_are_written_once(splits: Any) -> None:
    first = data_name(splits["train"])
    assert data_name([dict(row) for row in splits["train"]]) == first
    assert data_name(splits["test"]) != first
    assert data_name(splits["train"], "test") != first


@pytest.mark.usefixtures("place")
def test_names_of_labels_in_a_dataset_are_kept(splits: Any) -> None:
    import datasets

    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["bad", "good"])}
    )
    rows = [{"text": row["text"], "label": int(row["label"] == "positive")} for row in splits["train"]]
    dataset = datasets.Dataset.from_list(rows, features=features)
    assert data_name(dataset) == data_name(dataset.select(range(len(dataset))))
    assert list(open_table(data_name(dataset)).label_names) == ["bad", "good"]


@pytest.mark.usefixtures("place")
def test_numbers_of_numpy_and_missing_cells() -> None:
    import pandas

    rows = [{"text": "a", "label": np.int64(1), "tags": np.array([0, 1])}]
    written = Path(data_name(rows), "train.jsonl").read_text()
    assert written == '{"text": "a", "label": 1, "tags": [0, 1]}\n'
    frame = pandas.DataFrame({"text": ["é", None], "label": [0.5, float("nan")]})
    assert '"é"' in Path(data_name(frame), "train.jsonl").read_text()
    assert Path(data_name(frame), "train.jsonl").read_text().count("null") == 2


def test_names_stay_as_they_are() -> None:
    assert data_name("hf:glue/sst2") == "hf:glue/sst2"
    assert data_name(Path("rows.csv")) == "rows.csv"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (3, "a value of type int is not a dataset"),
        ([1], "data: row 0: not a dictionary of columns"),
        ([{"text": object()}], "data: row 0: a value is not text, a number or a list"),
        ({}, "no split"),
        ([], "data: train has no rows; give at least one row"),
        ({"a/b": []}, "not a split name"),
        ({"a\0b": []}, "not a split name"),
        ([{"text": "a"}, {"text": "\ud800"}], "data: row 1: the text is not valid Unicode"),
    ],
)
def test_what_is_no_data_is_said(data: Any, message: str) -> None:
    with pytest.raises(compress.UserError, match=message):
        data_name(data)


def test_frames_that_cannot_be_written() -> None:
    import pandas

    twice = pandas.DataFrame([["a", "b"]], columns=["text", "text"])
    with pytest.raises(compress.UserError, match="data: several columns are called 'text'; rename them"):
        data_name(twice)
    with pytest.raises(compress.UserError, match="data: the text is not valid Unicode"):
        data_name(pandas.DataFrame({"text": [b"\xff"]}))
    with pytest.raises(compress.UserError, match="data: train has no rows; give at least one row"):
        data_name(pandas.DataFrame({"text": []}))


@pytest.mark.usefixtures("place")
def test_an_error_about_rows_in_memory_names_their_keyword(classifier: Any, splits: Any, tmp_path: Path) -> None:
    import pandas

    frame = pandas.DataFrame(splits["train"])
    frame.loc[3, "text"] = None
    how: dict[str, Any] = {"quiet": True, "training": {"steps": 1}}
    with pytest.raises(compress.UserError, match=r"^data: train: 1 row without a text") as caught:
        compress.finetune(classifier, frame, **how)
    assert str(caught.value) == caught.value.line()
    with pytest.raises(compress.UserError, match=r"^unlabelled: cannot infer the text column"):
        compress.distill(classifier, splits, unlabelled=[{"words": 1}], **how)
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "a", "label": null}\n' * 20)
    with pytest.raises(compress.UserError) as caught:
        compress.finetune(classifier, path, **how)
    assert str(path) in str(caught.value), "a file is named by its path"
