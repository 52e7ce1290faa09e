"""`compress compare` of model folders, and slices: measured on data, told by groups, kept by runs for later."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from e2e_toy import TEACHER, Cli, River, opinions, write_rows


def with_speakers(folder: Path) -> Path:
    """The toy data with a column that no model reads."""
    for split, rows in opinions().items():
        said = [{**row, "speaker": row["text"].split(" said ")[0]} for row in rows]
        write_rows(folder / f"{split}.jsonl", said)
    return folder


def test_models_are_measured_judged_and_told_by_slices(taught: Path, compress: Cli) -> None:
    shutil.copytree(TEACHER, "模型")
    with_speakers(taught / "spoken")
    words = ("compare", "模型", "--against", TEACHER, "--data", "spoken", "--bootstrap", "100", "--threads", "1")
    done = compress(
        *words, "--slice", "length", "--slice", "speaker", "--json", "--html", "page.html", "--csv", "t.csv"
    )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert {row["name"] for row in told["rows"]} == {"模型", "teacher"}
    slices = told["slices"]["模型"]
    assert sum(s["rows"] for s in slices if s["by"] == "speaker") == 32
    assert {s["by"] for s in slices} == {"characters", "speaker"}
    assert all(s["why"] == "fewer than 30 rows" for s in slices if s["by"] == "speaker"), "named, not tested"
    page = Path("page.html").read_text(encoding="utf-8")
    assert "模型" in page
    no_figures = "slices of 模型: none of the groups of rows has a figure: fewer than 30 rows"
    assert no_figures in page
    assert len(Path("t.csv").read_text(encoding="utf-8").splitlines()) == 3

    done = compress("evaluate", "模型", "--against", TEACHER, "--data", "spoken", "--slice", "speakr", "--quiet")
    assert done.code == 2
    assert "--slice speakr: column 'speakr' not found in " in done.err
    assert "did you mean 'speaker'?" in done.err
    done = compress("evaluate", "模型", "--against", TEACHER, "--data", "data", "--slices", "--bootstrap", "100")
    assert done.code == 0, done.err
    assert no_figures in done.out


@pytest.mark.thorough
def test_runs_keep_what_later_comparisons_pair_them_by(river: River, compress: Cli, tmp_path: Path) -> None:
    store = f"sqlite:///{river.folder / 'mlruns' / 'mlflow.db'}"
    words = ("compare", "--experiment", "compress", "--json", "--tracking-uri", store, "--mixed-conditions")
    done = compress(*words, "--html", tmp_path / "page.html")
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert not any("unpaired" in note for note in told["notes"])
    assert {row["facts"]["role"] for row in told["rows"]} >= {"teacher", "student", "control"}
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    for said in ("Reliability diagram", "predictions that differ from the teacher", "label: negative"):
        assert said in page, "what the runs left"
    kept = list((river.folder / "mlruns").rglob("slices.json"))
    assert kept
    table = json.loads(kept[0].read_text(encoding="utf-8"))
    assert {row[table["columns"].index("by")] for row in table["data"]} == {"characters", "label"}
