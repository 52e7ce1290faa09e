"""`--group-column`: the metric of each group, the gaps between them, and the gates on the largest gap."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import PRETRAINED, QUICK, TEACHER, Cli, opinions, write_rows

from compress.errors import ExitCode
from compress.tracking import Store

OTHER = {"positive": "negative", "negative": "positive"}
WORDS = ("--data", "spoken", "--bootstrap", "100", "--threads", "1")


@pytest.fixture
def spoken(taught: Path, compress: Cli) -> Path:
    """Two groups of 40 rows, on one of which the teacher is always right and on the other always wrong, and one of
    5."""
    rows = [row for split in ("train", "validation", "test") for row in opinions()[split]][:85]
    write_rows(taught / "texts.jsonl", rows)
    done = compress("predict", TEACHER, "--file", "texts.jsonl", "--json")
    assert done.code == 0, done.err
    answers = [json.loads(line)["label"] for line in done.out.splitlines()]
    told = []
    for number, (row, answer) in enumerate(zip(rows, answers, strict=True)):
        place = "north" if number < 40 else "south" if number < 80 else "east"
        told.append({**row, "place": place, "label": OTHER[answer] if place == "south" else answer})
    for split in ("train", "validation", "test"):
        write_rows(taught / f"spoken/{split}.jsonl", told)
    return taught


def test_evaluate_reports_the_gap_between_groups(spoken: Path, compress: Cli) -> None:
    done = compress("evaluate", TEACHER, *WORDS, "--group-column", "place", "--json")
    assert done.code == 0, done.err
    (told,) = json.loads(done.out)["models"]
    found = {s["name"]: s for s in told["groups"]}
    assert {name: s["rows"] for name, s in found.items()} == {"north": 40, "south": 40, "east": 5}
    assert found["east"]["why"] == "fewer than 30 rows"
    gap = told["gap"]
    assert (gap["best"], gap["worst"], gap["groups"], gap["small"]) == ("north", "south", 2, 1)
    assert gap["value"]["value"] == pytest.approx(found["north"]["value"]["value"] - found["south"]["value"]["value"])
    assert told["values"]["groups/gap"] == gap["value"]["value"] == 1.0
    assert told["values"]["groups/gap_low"] <= gap["value"]["value"] <= told["values"]["groups/gap_high"]
    assert told["context"]["group_column"] == "place"

    done = compress("evaluate", TEACHER, *WORDS, "--group-column", "place")
    assert "largest gap" in done.out
    assert "north above south; 1 group is too small to compare" in done.out
    assert "too small: fewer than 30 rows" in done.out

    done = compress("evaluate", TEACHER, *WORDS, "--group-column", "plaec")
    assert done.code == 2
    assert "column 'plaec' not found" in done.err
    assert "did you mean 'place'?" in done.err


def test_a_gap_is_a_gate(spoken: Path, compress: Cli) -> None:
    words = ("--data", "spoken", "--group-column", "place", "--threads", "1")
    done = compress("compare", TEACHER, *WORDS, "--group-column", "place", "--max-gap", "1")
    assert done.code == ExitCode.REFUSED
    assert "the gap between groups is too large or unknown" in done.err
    assert "north above south" in done.err
    done = compress("compare", TEACHER, *WORDS, "--group-column", "place", "--max-gap", "100", "--json")
    assert done.code == 0, done.err
    assert next(iter(json.loads(done.out)["groups"].values()))["gap"]["best"] == "north"
    assert compress("compare", TEACHER, *WORDS, "--max-gap", "1").code == 2, "of which groups?"

    done = compress("promote", TEACHER, "--as", "fair", "--name", "m", *words, "--max-gap", "1", "--dry-run")
    assert done.code == ExitCode.REFUSED
    assert "gap between groups by place" in done.err
    assert "over the limit of 1 point" in done.err
    done = compress("promote", TEACHER, "--as", "fair", "--name", "m", *words, "--max-gap", "120", "--no-pyfunc")
    assert done.code == 0, done.err
    client = Store(f"sqlite:///{spoken / 'mlruns' / 'mlflow.db'}").client()
    version = client.get_model_version_by_alias("m", "fair")
    assert "gap between groups by place" in version.tags["compress.gates"]
    done = compress("promote", TEACHER, "--as", "other", "--max-gap", "1")
    assert done.code == 2
    assert "the gap between groups has not been measured" in done.err


def test_a_run_logs_the_groups(spoken: Path, compress: Cli) -> None:
    (spoken / "quick.yaml").write_text(
        f"extends: finetune\n{QUICK}  group_column: place\nstages:\n  0: {{training: {{steps: 4}}}}\n", encoding="utf-8"
    )
    done = compress(
        "finetune", "--recipe", "./quick.yaml", "--model", PRETRAINED, "--data", "spoken", "--output", "runs/g"
    )
    assert done.code == 0, done.err
    assert "groups by place: " in done.out
    table = json.loads((spoken / "runs/g/groups.json").read_text())
    assert {row[1] for row in table["data"]} == {"north", "south", "east"}
