"""`compress predict --file … --output`: shards that are made once, whoever makes them, and the same bytes as of one."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from e2e_toy import Cli, Server, opinions, write_rows
from lost_node import run_losing_a_node

from compress.predict.rows import windows
from compress.predict.rows.answers import PredictionAnswerer

ROWS = ("predict", "mine", "--file", "rows", "--threads", "1")
SHARDS = ("--output", "out", "--shard-rows", "10")
DIVIDED = (*ROWS, *SHARDS, "--join", "all.jsonl")


@pytest.fixture
def folder(own_model: Path) -> Path:
    """A working folder with a model, and 40 rows in two files of which neither ends with a shard."""
    texts = [{"id": n, "text": row["text"]} for n, row in enumerate(opinions()["train"][:40])]
    write_rows(own_model.parent / "rows/a.jsonl", texts[:17])
    rows = "".join(f'{row["id"]},"{row["text"]}\nindeed"\n' for row in texts[17:])
    (own_model.parent / "rows/b.csv").write_text("id,text\n" + rows)
    return own_model.parent


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """A shard is a window, as those of a file are without the option: other rows beside a row may change its digits."""
    monkeypatch.setattr(windows, "AT_ONCE", 10)
    monkeypatch.setattr(windows, "WINDOW", 10)


@pytest.fixture
def whole(folder: Path, small_windows: None, compress: Cli) -> str:
    """What one process writes that knows no shards."""
    done = compress(*ROWS, "--json")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 40
    return done.out


def shards(folder: Path) -> list[Path]:
    return sorted((folder / "out/shards").glob("[0-9]*"))


def test_shards_are_made_once_and_damaged_ones_again(folder: Path, whole: str, compress: Cli) -> None:
    done = compress(*DIVIDED)
    assert done.code == 0, done.err
    assert "40 predictions: all.jsonl" in done.err
    assert (folder / "all.jsonl").read_text() == whole
    manifest = json.loads((folder / "out/manifest.json").read_text())
    assert [(one["first"], one["rows"], one["answered"]) for one in manifest["shards"]] == [
        (first, 10, 10) for first in (0, 10, 20, 30)
    ]
    assert (manifest["rows"], manifest["rejected"]) == (40, 0)

    first, second, third, _ = shards(folder)
    inode = third.stat().st_ino
    (first / "answers.jsonl").write_text("damaged")
    (second / "shard.json").unlink()
    (folder / "all.jsonl").unlink()
    again = compress(*DIVIDED, "--resume")
    assert again.code == 0, again.err
    assert "shard 000000 is made again: answers.jsonl: 7 bytes instead of" in again.err
    assert "shard 000001 is made again: shard.json: missing" in again.err
    assert (folder / "all.jsonl").read_text() == whole
    assert shards(folder)[2].stat().st_ino == inode, "what is whole stays"
    assert json.loads((folder / "out/manifest.json").read_text()) == manifest


def test_a_command_that_is_killed_goes_on(folder: Path, whole: str, server: Server) -> None:
    killed = server.run(folder, *DIVIDED, fault="folder.after_fsync:3:kill")
    assert killed.code == -signal.SIGKILL
    assert len(shards(folder)) == 2
    before = [shard.stat().st_ino for shard in shards(folder)]
    refused = server.run(folder, *DIVIDED)
    assert (refused.code, refused.out) == (3, "")
    assert refused.line == (
        "error: --output out: the output folder already contains predictions; "
        "use --resume to continue, or name a new folder"
    )
    done = server.run(folder, *DIVIDED, "--resume")
    assert done.code == 0, done.err
    assert (folder / "all.jsonl").read_text() == whole
    assert [shard.stat().st_ino for shard in shards(folder)][:2] == before
    assert not list((folder / "out").rglob(".tmp-*"))


def test_ctrl_c_stops_before_the_next_window(
    folder: Path, whole: str, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = PredictionAnswerer.lines

    def interrupted(self: Any, rows: Any, told: Any, *, as_json: bool) -> Any:
        if rows[0].beside["id"] == 10:
            os.kill(os.getpid(), signal.SIGINT)
        return answer(self, rows, told, as_json=as_json)

    with monkeypatch.context() as patch:
        patch.setattr(PredictionAnswerer, "lines", interrupted)
        stopped = compress(*DIVIDED)
    assert stopped.code == 75
    assert stopped.err.splitlines()[-1].endswith("continue with: compress " + " ".join([*DIVIDED, "--resume"]))
    assert [shard.name for shard in shards(folder)] == ["000000", "000001"]
    assert compress(*DIVIDED, "--resume").code == 0
    assert (folder / "all.jsonl").read_text() == whole


def test_other_answers_are_not_mixed_in(folder: Path, compress: Cli) -> None:
    assert compress(*ROWS, *SHARDS).code == 0
    for words, why in (
        ((*ROWS, "--output", "out", "--shard-rows", "20"), "shard_rows"),
        ((*ROWS, *SHARDS, "--embeddings"), "embeddings"),
    ):
        done = compress(*words, "--resume")
        assert done.code == 3
        assert "cannot be continued: changed since they were begun: " in done.line
        assert why in done.line
    os.utime(folder / "rows/a.jsonl", (1, 1))
    assert compress(*ROWS, *SHARDS, "--resume").code == 0, "the same bytes"
    content = (folder / "rows/a.jsonl").read_text()
    (folder / "rows/a.jsonl").write_text(content.replace("good", "fine"))
    assert "changed since they were begun: rows/a.jsonl" in compress(*ROWS, *SHARDS, "--resume").line
    write_rows(folder / "rows/c.jsonl", [{"text": "more"}])
    assert "changed since they were begun: files" in compress(*ROWS, *SHARDS, "--resume").line


def test_bad_rows_are_written_down(folder: Path, small_windows: None, compress: Cli) -> None:
    lines = (folder / "rows/a.jsonl").read_text().splitlines()
    lines[12:12] = ['{"id": 1, "text": 7}', "{", ""]
    (folder / "rows/a.jsonl").write_text("\n".join(lines) + "\n")
    with (folder / "rows/b.csv").open("a") as file:
        file.write("40\n")
    rejected = [
        {"file": "rows/a.jsonl", "line": 13, "reason": "the text is empty or not text"},
        {"file": "rows/a.jsonl", "line": 14, "reason": "not JSON: {"},
        {"file": "rows/b.csv", "line": 48, "reason": "the row has 1 cells, the header has 2: '40'"},
    ]
    stopped = compress(*ROWS)
    assert (stopped.code, stopped.line) == (2, "error: rows/a.jsonl:13: the text is empty or not text")
    stopped = compress(*ROWS, *SHARDS)
    assert stopped.line.startswith("error: rows/b.csv:48: the row has 1 cells"), "tables are checked when counted"
    assert not (folder / "out").exists()

    lenient = (*ROWS, "--json", "--bad-rows")
    whole = compress(*lenient, "bad-1.jsonl")
    assert whole.code == 0, whole.err
    ids = [json.loads(line)["id"] for line in whole.out.splitlines()]
    assert ids == [*range(17), *map(str, range(17, 40))]
    done = compress(*lenient, "bad-2.jsonl", *SHARDS, "--join", "all.jsonl")
    assert done.code == 0, done.err
    assert (folder / "all.jsonl").read_text() == whole.out
    for name in ("bad-1.jsonl", "bad-2.jsonl"):
        assert [json.loads(line) for line in (folder / name).read_text().splitlines()] == rejected
    kept = compress(*ROWS, *SHARDS, "--resume")
    assert kept.code == 2
    assert "3 rows were rejected by the command that is resumed; add --bad-rows FILE" in kept.line


def test_columns_are_kept_in_shards_and_in_json(folder: Path, compress: Cli) -> None:
    rows = [{"text": row["text"], "label": row["label"], "stars": i} for i, row in enumerate(opinions()["train"][:6])]
    write_rows(folder / "rated.jsonl", rows)
    words = ("predict", "mine", "--file", "rated.jsonl", "--threads", "1", "--keep-column", "stars")
    kept = (*words, "--keep-column", "label=gold")
    done = compress(*kept, "--output", "kept", "--shard-rows", "4", "--join", "kept.jsonl")
    assert done.code == 0, done.err
    found = [json.loads(line) for line in (folder / "kept.jsonl").read_text().splitlines()]
    assert [(one["stars"], one["gold"]) for one in found] == [(row["stars"], row["label"]) for row in rows]
    assert {"text", "label", "probabilities", "stars", "gold"} == found[0].keys()
    assert [json.loads(line)["gold"] for line in compress(*kept, "--json").out.splitlines()] == [
        r["label"] for r in rows
    ]
    done = compress(*words, "--keep-column", "label", "--json")
    assert (done.code, done.out) == (2, "")
    assert "--keep-column: the predictions have a 'label' of their own" in done.line


def test_a_bad_row_ends_the_command_with_its_line(folder: Path, compress: Cli) -> None:
    with (folder / "rows/a.jsonl").open("a") as file:
        file.write("{\n")
    done = compress(*ROWS, *SHARDS)
    assert (done.code, done.line) == (2, "error: rows/a.jsonl:18: not JSON: {; write one object with text on each line")
    assert len(shards(folder)) == 1, "the shard of the bad row is not there"


def test_vectors_are_divided_too(folder: Path, small_windows: None, compress: Cli) -> None:
    words = ("predict", "mine", "--embeddings", "--file", "rows/a.jsonl", "--threads", "1")
    whole = compress(*words, "--json")
    done = compress(*words, *SHARDS, "--join", "vectors.jsonl", "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert (folder / "vectors.jsonl").read_text() == whole.out
    done = compress(*words, *SHARDS, "--resume", "--join", "vectors.npy", "--quiet")
    assert (done.code, done.err) == (0, "")
    wanted = [json.loads(line)["embedding"] for line in whole.out.splitlines()]
    found = np.load(folder / "vectors.npy")
    assert found.dtype == np.float32
    assert np.array_equal(found, np.asarray(wanted, np.float32))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--workers", "2"), "--workers: has no effect without --output; add --output FOLDER"),
        (("--shard-rows", "8"), "--shard-rows: has no effect without --output"),
        (("--join", "x"), "--join: has no effect without --output"),
        (("--output", "mine"), "the output folder exists and contains no predictions of compress predict"),
        (("--output", "all.jsonl"), "and this is the name of a file; for one file: --output all --join all.jsonl"),
        (("--output", "task.yaml"), "--output task.yaml: the output is a file; name a folder"),
        (("--output", "x", "--join", "x.npy"), "--join x.npy: the predictions are not vectors; name a .jsonl file"),
        (("--output", "x", "--join", "task.yaml"), "--join: task.yaml exists already; name another file"),
        (("--bad-rows", "task.yaml"), "task.yaml: exists already; name another file"),
        (("--output", "x", "--file", "-"), "--file -: standard input cannot be divided into shards; give a file"),
        (("--output", "x", "--file", "mlruns"), "mlruns: the folder has no files of rows; known: .jsonl"),
        (("--keep-column", "id"), "--keep-column: has no effect without --json or --output; add one of them"),
        (("--keep-column", "a=b", "--keep-column", "b", "--json"), "--keep-column b: duplicate name 'b'"),
        (("--keep-column", "=b", "--json"), "--keep-column =b: the name of the column is missing"),
        (("--output", "x", "a text"), "TEXTS: cannot be combined with --output; remove it"),
    ],
)
def test_what_does_not_fit_is_one_line(words: tuple[str, ...], said: str, folder: Path, compress: Cli) -> None:
    done = compress(*ROWS, *words)
    assert (done.code in (2, 3), done.out) == (True, "")
    assert said in done.line
    assert not (folder / "x").exists()


# --- several processes --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_two_workers_write_the_same_and_others_take_over_from_killed_ones(
    folder: Path, whole: str, server: Server
) -> None:
    """Each worker is killed at its second shard, so that four of them make one shard each."""
    done = server.run(folder, *DIVIDED, "--workers", "2", fault="folder.after_fill:2:kill")
    assert done.code == 0, done.err
    assert (folder / "all.jsonl").read_text() == whole
    assert "worker-1 failed: killed (SIGKILL), as the system does when memory runs out; use fewer --workers" in done.err
    assert "left over: starting other workers" in done.err
    assert sorted(one.name for one in (folder / "out").iterdir() if not one.name.startswith(".")) == [
        "manifest.json", "plan.json", "shards", "workers",
    ]  # fmt: skip


@pytest.mark.thorough
def test_workers_that_never_get_on_end_the_command(folder: Path, whole: str, server: Server, compress: Cli) -> None:
    done = server.run(folder, *DIVIDED, "--workers", "2", fault="folder.after_fill:1:kill")
    assert done.code == 5, done.err
    assert done.line.startswith("error: 2 of 2 workers failed: worker-")
    assert done.line.endswith("--workers 2 --resume")
    again = compress(*DIVIDED, "--resume")
    assert again.code == 0, again.err
    assert (folder / "all.jsonl").read_text() == whole


@pytest.mark.thorough
def test_the_first_bad_row_ends_all_workers(folder: Path, server: Server) -> None:
    with (folder / "rows/a.jsonl").open("a") as file:
        file.write("{\n")
    done = server.run(folder, *DIVIDED, "--workers", "2")
    assert done.code == 2, done.err
    assert done.line.startswith("error: rows/a.jsonl:18: not JSON: {")


def wait_for(what: Callable[[], Any]) -> None:
    while not what():
        time.sleep(0.05)


@pytest.mark.thorough
def test_workers_stop_when_the_command_is_killed_and_another_goes_on(folder: Path, whole: str, compress: Cli) -> None:
    words = [sys.executable, "-m", "compress", *DIVIDED, "--workers", "2"]
    slow = {**os.environ, "COMPRESS_FAULT": "folder.after_fill:2:sleep=3"}
    process = subprocess.Popen(words, stderr=subprocess.DEVNULL, env=slow)
    wait_for(lambda: len(shards(folder)) >= 2)
    process.kill()
    process.wait()
    again = compress(*DIVIDED, "--resume")
    assert again.code == 0, again.err
    assert (folder / "all.jsonl").read_text() == whole


def run(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "compress", *words]
    return subprocess.run(command, capture_output=True, text=True, env={**os.environ, **environment})


needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.mark.thorough
@needs_ray
def test_ray_writes_the_same_where_workers_are_killed(folder: Path, whole: str) -> None:
    """Each is killed at its third shard."""
    done = run(*DIVIDED, "--on", "ray", COMPRESS_FAULT="folder.after_fill:3:kill")
    assert done.returncode == 0, done.stderr
    assert (folder / "all.jsonl").read_text() == whole
    assert " for each worker" in done.stderr


@pytest.mark.slow
@needs_ray
def test_a_node_of_a_cluster_is_lost(folder: Path, whole: str) -> None:
    """Two nodes of one machine; each worker waits a while after its first shard."""
    done = run_losing_a_node("out/shards/[0-9]*", *DIVIDED, COMPRESS_FAULT="folder.after_rename:1:sleep=5")
    assert done.returncode == 0, done.stderr
    assert (folder / "all.jsonl").read_text() == whole


@pytest.mark.parametrize("flag", ["--output", "--join", "--bad-rows"])
def test_a_place_that_cannot_be_written_is_found_before_the_model_is_opened(
    flag: str, folder: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = "compress.commands.predict_shards.ModelRequest.open"
    monkeypatch.setattr(opened, lambda *_: pytest.fail("the model was opened"))
    Path("file").touch()
    done = compress(*ROWS, *(() if flag == "--output" else ("--output", "out")), flag, "file/below")
    assert (done.code, done.line.startswith("error: file/below: ")) == (2, True), done.err
    assert not Path("out").exists()
