"""Text without labels through the real command line: pools, filters, agreement as the end of training, time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_toy import DISTILL, SHORT_LENGTH, SPLITS, Cli, Done, write_rows

from compress.stages.distill import row_filter
from compress.training import length

POOL = ("--pool", "pool.txt", "--pool-rows", "10")
LINES = [f"{who} told me the {thing} was {how} today" for who in ("she", "he") for thing in ("film", "meal", "song")
         for how in ("good", "awful", "great")]  # fmt: skip


def test_a_pool_by_vectors_of_the_teacher(taught: Path, compress: Cli) -> None:
    (taught / "pool.txt").write_text("\n".join(LINES) + "\n")
    done = compress(*DISTILL, *POOL, "--pool-by", "vectors", "--output", "runs/s", "--json")
    assert done.code == 0, done.err
    assert "pool: 10 of 18 passages of pool.txt are taken, the nearest to the training rows by vectors" in done.err
    student = next(m for m in json.loads(done.out)["models"] if m["role"] == "student")
    assert student["values"]["rows/teacher_labelled"] >= 10
    done = compress(*DISTILL, "--pool-by", "vectors", "--output", "runs/t")
    assert (done.code, done.out) == (2, "")
    assert "pool_by has no effect without pool" in done.err, done.err


def rows_of(done: Done) -> dict[str, float]:
    assert done.code == 0, done.err
    student = next(m for m in json.loads(done.out)["models"] if m["role"] == "student")
    return {k.removeprefix("rows/"): v for k, v in student["values"].items() if k.startswith("rows/")}


TEXT = ("--unlabelled", "more.jsonl")
MANY = [f"{who} told {whom} the {thing} was {how}" for who in ("she", "he", "anna") for whom in ("me", "us", "him")
        for thing in ("film", "meal", "song", "book") for how in ("good", "awful", "great")]  # fmt: skip


def with_text(folder: Path) -> None:
    write_rows(folder / "more.jsonl", [{"text": text} for text in MANY])


WORDS = ("--min-confidence", "0.502", "--max-confidence", "0.999", "--balance", "20", "--json")


def test_rows_are_filtered_by_what_the_teacher_says(taught: Path, compress: Cli) -> None:
    with_text(taught)
    done = compress(*DISTILL, *TEXT, *WORDS, "--output", "runs/a")
    found = rows_of(done)
    every = found["teacher_labelled"] + sum(n for name, n in found.items() if name.startswith("removed_"))
    assert every == len(MANY) + SPLITS["unlabelled"]
    assert 0 < found["teacher_labelled"] <= 40
    assert f"row filter: {found['teacher_labelled']:.0f} of {every:.0f} rows" in done.err
    assert found["removed_by_balance"] > 0


@pytest.mark.thorough
def test_filters_of_later_runs(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with_text(taught)
    asked: list[int] = []
    ask = row_filter._ask
    monkeypatch.setattr(row_filter, "_ask", lambda *a: asked.append(len(a[1])) or ask(*a))
    found = rows_of(compress(*DISTILL, *TEXT, *WORDS, "--output", "runs/a"))
    assert sum(asked) == len(MANY) + SPLITS["unlabelled"]
    again = rows_of(compress(*DISTILL, *TEXT, *WORDS, "--teacher-cache", "cache", "--output", "runs/b"))
    assert again == found
    assert sum(asked) == len(MANY) + SPLITS["unlabelled"], "what the teacher says of these rows is kept"
    more = ("--disagreement", "student", "--unlabelled-rows", "9", "--json")
    assert rows_of(compress(*DISTILL, *TEXT, *more, "--output", "runs/c"))["teacher_labelled"] == 9
    more = ("--disagreement", "runs/a/student", "--min-confidence", "0.5", "--json")
    assert rows_of(compress(*DISTILL, *TEXT, *more, "--output", "runs/d"))["removed_agreeing"] > 0
    more = ("--teacher", "runs/a/student", "--disagreement", "teachers", "--json")
    assert rows_of(compress(*DISTILL, *TEXT, *more, "--output", "runs/e"))["removed_agreeing"] > 0
    more = ("--augment", "mix", "--balance", "10", "--json")
    found = rows_of(compress(*DISTILL, *TEXT, *more, "--output", "runs/f"))
    assert found["teacher_labelled"] <= 40, "text and copies are filtered alike"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("--min-confidence", "0.999"), "the row filter leaves no row that only the teacher labels"),
        (("--min-confidence", "1.5"), "--min-confidence: 1.5 is not possible; give a share between 0 and 1"),
        (("--balance", "evn"), "--balance evn: not a number of rows; give even, or a number such as 5000"),
        (("--time", "10x"), "'10x' is not a time, such as 90s, 10m or 2h"),
        (("--disagreement", "teachers"), "there are no several teachers"),
        (("--disagreement", "runs/studnt"), "model folder 'runs/studnt' not found"),
        (("--balance", "5", "--set", "stages.0.use_unlabelled=false"), "the row filter has no effect"),
    ],
)
def test_a_wrong_filter_is_one_line(words: tuple[str, ...], line: str, taught: Path, compress: Cli) -> None:
    with_text(taught)
    text = () if "stages.0.use_unlabelled=false" in words else TEXT
    done = compress(*DISTILL, *text, *words, "--output", "runs/s")
    assert (done.code, done.out) == (2, ""), done.err
    assert line in done.err, done.err
    assert not (taught / "runs/s").exists()


def test_training_stops_by_agreement_on_held_out_text(
    taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_text(taught)
    for name, value in SHORT_LENGTH.items():
        monkeypatch.setattr(length, name, value)
    words = ("--stop", "agreement", "--time", "1h", "--set", "stages.0.training.steps=null", "--json")
    done = compress(*DISTILL, *TEXT, *words, "--set", "stages.0.control=true", "--output", "runs/a")
    found = rows_of(done)
    assert "until agreement with the teacher on held-out text stops rising" in done.err
    assert "at most 60 minutes, 8 rows a step" in done.err
    assert found["held_out"] == (found["held_out"] + found["teacher_labelled"]) // 10
    stages = json.loads(done.out)["stages"]["0-distill"]
    assert 0 <= stages["text_agreement"] <= 1
    assert stages["text_kl"] >= 0
    assert not [name for name in json.loads(done.out)["stages"].get("0-distill-control", {}) if "text" in name]
