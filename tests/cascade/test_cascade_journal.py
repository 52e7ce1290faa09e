"""The run of a cascade in MLflow: its figures beside those of its parent and of other models."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import compress
from compress.storage import manifest
from compress.tracking import resolve_store
from compress.tracking.listing import find_run
from compress.tracking.records import Record, read


def read_records(folder: Path, kind: str) -> list[Record]:
    return [record for record in read(folder).records if record["op"] == kind]


def gather(folder: Path, kind: str) -> dict[str, Any]:
    """The values of all records of this kind."""
    return {key: value for record in read_records(folder, kind) for key, value in record["values"].items()}


def test_what_was_measured_is_logged_beside_the_parent(
    tmp_path: Path, small: Path, parent: Path, data: Path, latencies: object
) -> None:
    output, run = tmp_path / "cascade", tmp_path / "cascade-run"
    made = compress.cascade([small, parent], str(data), output=output, max_drop=10, device="cpu", quiet=True)
    found = made["certificate"]
    assert made["run"] == str(run)
    start = read(run).start
    assert (start["name"], start["tags"]["compress.method"], start["tags"]["compress.role"]) == (
        "cascade", "cascade", "student"
    )  # fmt: skip
    first, last = found["stages"]
    params = gather(run, "params")
    assert (params["models"], params["thresholds"]) == ("small, parent", f"{first['threshold']:.6g}")
    assert (params["max_drop"], params["confidence"], params["method"]) == ("10", "90", "cascade")
    shares = {f"cascade/stage_{place}_answered_pct": 100 * one["share"] for place, one in ((1, first), (2, last))}
    assert gather(run, "metrics") == pytest.approx(shares)
    (model,) = read_records(run, "model")
    assert Path(model["folder"]) == output
    assert model["metrics"]["quality/accuracy"] == pytest.approx(found["quality"]["value"], abs=1e-6)
    assert model["metrics"]["vs_teacher/accuracy_difference"] == pytest.approx(found["difference"]["value"], abs=1e-6)
    assert model["metrics"]["size/disk_mb"] == pytest.approx(found["size_mb"], rel=1e-5)
    tags = gather(run, "tags")
    assert (tags["compress.certificate"], tags["measured.metric"]) == ("certified", "accuracy")
    assert str(output / "certificate.json") in [record["path"] for record in read_records(run, "artifact")]
    assert "on the test rows, within the bound of 10 points" in read_records(run, "note")[-1]["text"]
    theirs = read(run / "parent")
    assert (theirs.start["name"], theirs.start["parent"]["key"]) == ("cascade/parent", start["key"])
    assert theirs.start["tags"]["compress.role"] == "teacher"
    assert read(run).status == theirs.status == "FINISHED"
    assert manifest.find_unlisted(output) == [], "the model's folder holds the model only"
    assert {name: "quality/accuracy" in values for name, values in made.metrics.items()} == {
        "parent": True, "cascade": True
    }  # fmt: skip
    assert "accuracy against parent" in repr(made)


def test_no_run_where_no_cascade_was_made(
    tmp_path: Path, small: Path, parent: Path, data: Path, latencies: dict[str, float]
) -> None:
    latencies["small"] = 9.5
    made = compress.cascade([small, parent], str(data), output=tmp_path / "one", max_drop=0, device="cpu", quiet=True)
    assert (made.run_id, made.metrics) == (None, {})
    assert "is_cascade" in repr(made)
    assert not list(tmp_path.glob("*-run"))


@pytest.mark.store
@pytest.mark.thorough
def test_a_cascade_is_listed_and_compared_with_other_runs(
    tmp_path: Path, small: Path, parent: Path, data: Path, latencies: object, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    from compress.cli.main import main

    monkeypatch.chdir(tmp_path)
    Path("cascade-run").mkdir()
    made = compress.cascade([small, parent], str(data), output="cascade", max_drop=10, device="cpu", quiet=True)
    assert Path(made["run"]).name == "cascade-run-2", "an earlier run is not continued"
    row = find_run(resolve_store(), "cascade")
    assert row.run_id == made.run_id
    assert (row.metric, row.method) == ("accuracy", "cascade")
    capsys.readouterr()
    assert main(["compare", "--experiment", "compress", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert {one["name"] for one in rows} == {"cascade", "cascade/parent"}
    assert main(["promote", "cascade", "--as", "champion", "--name", "toy"]) == 0
    capsys.readouterr()
    assert main(["runs", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert {one["name"] for one in listed} == {"cascade", "cascade/parent"}, "the model of the run is not logged again"
