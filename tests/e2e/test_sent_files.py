"""Commands on a simulated Ray cluster that read a model and data outside of the shared folder: copies are sent, and the
results are those of one process, byte for byte."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_toy import DISTILL, TEACHER, Cli, opinions, sha, write_rows

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

_SCRIPT = """
import os, sys
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=1)
os.environ["RAY_ADDRESS"] = cluster.address
from compress.cli.main import main
from compress.run.jobs import nodes, on_ray
from compress.run.jobs.stage_work import StageWork
ask, send, clean = nodes.make_probe(), on_ray.send, StageWork.clean

def probe(folder, shared, read, packages):
    return {**ask(folder, shared, read, packages), "missing": [path for path in read if "elsewhere/" in path]}

def send_and_hide(*given):
    sent = send(*given)
    os.rename("../elsewhere", "../hidden")
    return sent

def show_and_clean(work):
    os.rename("../hidden", "../elsewhere")
    clean(work)

nodes.make_probe, on_ray.send, StageWork.clean = lambda: probe, send_and_hide, show_and_clean
try:
    code = main()
finally:
    cluster.shutdown()
sys.exit(code)
"""
"""All nodes are on this machine: those of the cluster say that they do not see a folder, which then disappears; workers
of a stage done, it is there again for the process that trains."""


def run_elsewhere(*words: str) -> str:
    """What `compress WORDS --on ray` prints to stderr, where no node sees the folder `elsewhere`."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *words, "--on", "ray"], capture_output=True, text=True,
        env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_rows_are_answered_by_a_model_that_was_sent(own_model: Path, compress: Cli) -> None:
    elsewhere = own_model.parent.parent / "elsewhere"
    elsewhere.mkdir()
    own_model.rename(elsewhere / "mine")
    rows = [{"id": n, "text": row["text"]} for n, row in enumerate(opinions()["train"][:40])]
    write_rows(elsewhere / "rows/a.jsonl", rows[:17])
    write_rows(elsewhere / "rows/b.jsonl", [{"id": 0}, *rows[17:]])
    words = ("predict", "../elsewhere/mine", "--file", "../elsewhere/rows", "--threads", "1", "--shard-rows", "10")
    alone = compress(*words, "--output", "alone", "--join", "alone.jsonl", "--bad-rows", "alone-bad.jsonl")
    assert alone.code == 0, alone.err
    said = run_elsewhere(*words, "--output", "ray", "--join", "ray.jsonl", "--bad-rows", "ray-bad.jsonl")
    assert "sent ../elsewhere/mine (" in said
    assert "sent 2 files of ../elsewhere/rows (" in said
    for name in (".jsonl", "-bad.jsonl"):
        assert Path(f"ray{name}").read_bytes() == Path(f"alone{name}").read_bytes()
        assert Path(f"ray{name}").read_bytes()


def test_runs_train_on_data_that_was_sent(taught: Path, compress: Cli) -> None:
    words = (*move_elsewhere(taught), "--seeds", "2")
    alone = compress(*words, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    said = run_elsewhere(*words, "--output", "runs/ray")
    assert "sent ../elsewhere/teacher (" in said
    assert "sent ../elsewhere/data (" in said

    assert digest(taught / "runs/ray") == digest(taught / "runs/alone")
    for file in (taught / "runs/ray").rglob("*.json*"):
        assert b"/sent/" not in file.read_bytes(), f"{file} names a copy"


@pytest.mark.slow
def test_a_teacher_cache_is_filled_by_a_teacher_that_was_sent(taught: Path, compress: Cli) -> None:
    words = (*move_elsewhere(taught), "--teacher-cache", "answers")
    alone = compress(*words, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    known = {path.name: sha(path) for path in Path("answers").rglob("shards.json")}
    Path("answers").rename("undisturbed")
    said = run_elsewhere(*words, "--output", "runs/ray")
    assert "sent ../elsewhere/teacher (" in said
    assert {path.name: sha(path) for path in Path("answers").rglob("shards.json")} == known != {}
    assert digest(taught / "runs/ray") == digest(taught / "runs/alone")


def move_elsewhere(taught: Path) -> list[str]:
    """Move the teacher and the data out of the shared folder; returns the command that distils them."""
    (elsewhere := taught.parent / "elsewhere").mkdir()
    for name, place in ((TEACHER, "teacher"), ("data", "data")):
        (taught / name).rename(elsewhere / place)
    places = {TEACHER: "../elsewhere/teacher", "data": "../elsewhere/data"}
    return [*(places.get(word, word) for word in DISTILL), "--threads", "1"]


def digest(folder: Path) -> dict[str, str]:
    """Of all files of models that no figure is written into."""
    found = (
        p for name in ("model.safetensors", "config.json", "tokenizer.json") for p in folder.rglob(f"student/{name}")
    )
    return {str(path.relative_to(folder)): sha(path) for path in found}
