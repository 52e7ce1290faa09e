"""`compress distill --teacher-cache`: the teacher is asked once, by whoever comes first; everybody else reads."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import json
import os
import re
import shlex
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import DISTILL, PRETRAINED, TEACHER, Cli, Server, opinions, sha, write_rows
from lost_node import run_losing_a_node
from safetensors.torch import load_file, save_file
from workers_here import WorkersHere

from compress.errors import ExitCode
from compress.run.jobs import shards
from compress.run.jobs.stage_work import HANDED
from compress.storage import atomic, claims, journal
from compress.tracking import Store

pytestmark = pytest.mark.thorough
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")

CACHED = (*DISTILL, "--teacher-cache", "answers")
LAYERS = ("--set", "stages.0.objectives=[{kind: soft_targets}, {kind: hidden_mse}, {kind: minilm}]")
CORPUS = """
extends: replay-distilbert
method: distill
teacher: smoke-teacher
corpus: {source: corpus.txt, max_length: 24}
stages:
  - kind: distill
    level: general
    student: {layers: [0, 2]}
    masking: {strategy: static}
    objectives:
      - {kind: soft_targets, on: vocabulary, temperature: 2.0, weight: 5.0}
      - {kind: masked_lm, weight: 2.0}
      - {kind: cosine_hidden}
    training: {steps: 6, batch_rows: 8, learning_rate: 1e-3}
"""


def bits(number: int) -> tuple[str, str]:
    return "--set", f"stages.0.cache.bits={number}"


def losses(run: Path) -> list[float]:
    """The training curve, from the run's journal."""
    records, _ = journal.read(run / "tracking/journal.jsonl")
    return [r["values"]["train/loss"] for r in records if r["op"] == "metrics" and "train/loss" in r["values"]]


@pytest.mark.store
def test_the_first_student_fills_and_the_others_read(taught: Path, compress: Cli) -> None:
    first = compress(*CACHED, "--output", "runs/first")
    assert first.code == 0, first.err
    assert re.search(r"teacher cache answers/task: 64 rows, [\d.]+ (bytes|kB)\n", first.err)
    assert re.search(
        r"  logits, 16 bits, against the live teacher on 64 rows: KL \S+ nats, max error \S+, mean", first.err
    )
    assert "teacher cache 0/64" in first.err
    answers = {p: sha(p) for p in (taught / "answers").rglob("*") if p.is_file()}
    second = compress(*CACHED, "--output", "runs/second", "--seed", "3")
    assert second.code == 0, second.err
    assert "teacher cache 0/64" not in second.err
    assert {p: sha(p) for p in (taught / "answers").rglob("*") if p.is_file()} == answers
    client: Any = Store(f"sqlite:///{taught / 'mlruns/mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress").experiment_id
    for run in ("first", "second"):
        (told,) = client.search_runs([experiment], f"tags.`compress.folder` = '{taught / 'runs' / run}'")[:1]
        assert 0 <= told.data.metrics["distill/cache_kl"] < 1e-4
        assert 0 <= told.data.metrics["distill/cache_max_error"] < 1e-2
        assert told.data.metrics["distill/cache_mb"] > 0


@pytest.mark.parametrize(("number", "near"), [(32, 1e-5), (16, 1e-3), (8, 1e-1)])
def test_a_student_learns_the_same_as_from_the_live_teacher(
    number: int, near: float, taught: Path, compress: Cli
) -> None:
    for name, words in (("live", DISTILL), ("cached", (*CACHED, *bits(number)))):
        done = compress(*words, *LAYERS, "--output", f"runs/{name}")
        assert done.code == 0, done.err
    live, cached = losses(taught / "runs/live"), losses(taught / "runs/cached")
    assert len(live) == 6
    assert cached == pytest.approx(live, rel=near)


def test_student_twin_and_seeds_share_one_cache(taught: Path, compress: Cli) -> None:
    done = compress(*CACHED, "--set", "stages.0.control=true", "--seeds", "2", "--output", "runs/many")
    assert done.code == 0, done.err
    assert done.err.count("teacher cache 0/64") == 1
    assert done.err.count("teacher cache answers/task: 64 rows") == 2, "the twin on hard labels asks no teacher"
    assert (taught / "runs/many/seed-1/control").is_dir()


@pytest.mark.parametrize("top_k", [None, 5])
def test_on_text_whose_masks_are_drawn_once(top_k: int | None, taught: Path, compress: Cli) -> None:
    (taught / "corpus.yaml").write_text(CORPUS, encoding="utf-8")
    words = ("distill", "--recipe", "./corpus.yaml", "--teacher", TEACHER, "--general-teacher", PRETRAINED)
    more = () if top_k is None else ("--set", f"stages.0.cache.top_k={top_k}")
    for seed in ("0", "1"):
        done = compress(*words, "--seed", seed, "--teacher-cache", "answers", *more, "--output", f"runs/c{seed}")
        assert done.code == 0, done.err
        assert ("teacher cache 0/" in done.err) == (seed == "0"), "the masks are the same for all seeds"
    done = compress(*words, "--output", "runs/live")
    assert done.code == 0, done.err
    live, cached = losses(taught / "runs/live"), losses(taught / "runs/c0")
    if top_k is None:
        assert cached == pytest.approx(live, rel=1e-3)
    else:
        assert "of the probability mass kept" in done.err or cached != live
        assert cached[0] < live[0]


# --- stopped --------------------------------------------------------------------------------------------------------


def test_filling_that_is_killed_goes_on(taught: Path, server: Server) -> None:
    """Shards of some tokens only, so that there are several: each is there whole or not at all."""
    words = (*CACHED, "--quiet", "--set", "stages.0.cache.bits=32", *LAYERS)
    whole = server.run(taught, *words, "--output", "runs/whole")
    assert whole.code == 0, whole.err
    (taught / "answers").rename(taught / "undisturbed")
    done = server.run(taught, *words, "--output", "runs/cut", fault="folder.after_fsync:2:kill")
    assert done.code == -signal.SIGKILL
    done = server.run(taught, *words, "--output", "runs/cut", "--resume")
    assert done.code == 0, done.err
    names = [p.relative_to(taught / "undisturbed") for p in (taught / "undisturbed").rglob("*.bin")]
    assert names
    assert [sha(taught / "answers" / n) for n in names] == [sha(taught / "undisturbed" / n) for n in names]
    assert list((taught / "answers").rglob(".tmp-*")) == []
    assert sha(taught / "runs/cut/student/model.safetensors") == sha(taught / "runs/whole/student/model.safetensors")


# --- refused --------------------------------------------------------------------------------------------------------


def test_another_teachers_cache_is_refused_before_a_folder_is_made(taught: Path, compress: Cli) -> None:
    assert compress(*CACHED, "--output", "runs/x").code == 0
    done = compress("finetune", "--model", TEACHER, "--data", "data", "--max-length", "24", "--output", "runs/other",
                    "--set", "stages.0.training.steps=2", "--set", "stages.0.training.epochs=null")  # fmt: skip
    assert done.code == 0, done.err
    done = compress(*CACHED, "--teacher", "runs/other/model", "--output", "runs/y")
    assert (done.code, done.out) == (ExitCode.INPUT, "")
    assert re.fullmatch(
        r"error: answers/task: the teacher cache was built with another teacher: its teacher is [0-9a-f]{16}, this "
        r"run's is [0-9a-f]{16}; use another folder, or remove the cache to have it rebuilt",
        done.line,
    ), done.line
    assert not (taught / "runs/y").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--limit", "40"), "for other data: its data is"),
        (("--max-length", "20"), "for texts of another maximal length: its max length is 24, this run's is 20"),
    ],
)
def test_other_data_is_refused(change: tuple[str, ...], told: str, taught: Path, compress: Cli) -> None:
    assert compress(*CACHED, "--output", "runs/x").code == 0
    done = compress(*CACHED, *change, "--output", "runs/y")
    assert done.code == ExitCode.INPUT
    assert told in done.line
    assert not (taught / "runs/y").exists()


def test_a_cut_shard_is_refused_by_name(taught: Path, compress: Cli) -> None:
    assert compress(*CACHED, "--output", "runs/x").code == 0
    file = taught / "answers/task/fields/logits-16bit/shard-00000/values.bin"
    file.write_bytes(file.read_bytes()[:-1])
    done = compress(*CACHED, "--output", "runs/y")
    assert done.code == ExitCode.DATA
    assert done.line == (
        "error: answers/task/fields/logits-16bit/shard-00000: a shard of the teacher cache is damaged: values.bin: 255 "
        "bytes instead of 256; remove this folder to have it rebuilt, or restore it from a copy"
    )
    assert not (taught / "runs/y").exists()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("noise={rate: 0.1}",), "typo noise changes the text every epoch, so teacher outputs cannot be cached"),
        (("cache.bits=4",), "stages.0.cache.bits: found 4, allowed: 8, 16, 32"),
        (("cache.top_k=5",), "cache.top_k has no effect: no objective reads vocabulary logits; remove it"),
        (("cache.pth=x",), "unknown key"),
    ],
)
def test_what_a_recipe_may_not_say(change: tuple[str, ...], told: str, taught: Path, compress: Cli) -> None:
    sets = [word for value in change for word in ("--set", f"stages.0.{value}")]
    done = compress(*CACHED, *sets, "--output", "runs/x")
    assert (done.code, done.out) == (ExitCode.INPUT, "")
    assert told in done.err, done.err


def test_masks_that_change_are_refused_with_advice(taught: Path, compress: Cli) -> None:
    done = compress(
        "distill", "--recipe", "smoke", "--data", "data", "--teacher-cache", "answers", "--output", "runs/x"
    )
    assert done.code == ExitCode.INPUT
    assert "distilbert masking masks other tokens in each epoch" in done.err
    assert "set masking.strategy to static, or cache only in a stage with level: task_specific" in done.err
    assert not (taught / "answers").exists()


def test_a_cache_that_may_only_be_read_is_read(taught: Path, compress: Cli) -> None:
    assert compress(*CACHED, "--output", "runs/x").code == 0
    folders = [*(taught / "answers").rglob("*"), taught / "answers"]
    for path in folders:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    try:
        done = compress(*CACHED, "--output", "runs/y")
        assert done.code == 0, done.err
    finally:
        for path in folders:
            path.chmod(path.stat().st_mode | stat.S_IWUSR)
    assert atomic.verify_folder(taught / "runs/y/student") == []
    assert os.listdir(taught / "answers/task")


# --- several processes ----------------------------------------------------------------------------------------------

SHARED = (*CACHED, "--unlabelled", "more.jsonl", "--threads", "1", "--set", "stages.0.cache.bits=32")
LOG = "stages/0-distill/workers/worker-1/job.log"


@pytest.fixture
def several(taught: Path) -> Path:
    """A working folder with text for several shards."""
    texts = [row["text"] for rows in opinions().values() for row in rows]
    rows = [{"text": f"{one} {other}"} for one, other in itertools.product(texts[:36], texts[36:72])]
    write_rows(taught / "more.jsonl", rows)
    return taught


def read_cache(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): sha(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def start(*words: str) -> subprocess.Popen[str]:
    """The command in a process of its own. Each process waits after its first shard: there it is killed."""
    command = [sys.executable, "-m", "compress", *words]
    environ = {**os.environ, "COMPRESS_FAULT": "folder.after_rename:1:sleep=4"}
    return subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=environ)


def wait_for_shards(folder: Path, process: subprocess.Popen[str]) -> None:
    while process.poll() is None and not list((folder / "answers").rglob("shard-0*")):
        time.sleep(0.02)


def list_workers(log: Path) -> list[int]:
    """The processes that write a log."""
    found = []
    for one in Path("/proc").glob("[0-9]*/fd/1"):
        with contextlib.suppress(OSError):
            if os.readlink(one) == str(log):
                found.append(int(one.parts[2]))
    return found


def kill_worker(log: Path) -> None:
    for process in list_workers(log):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.mark.parametrize("top_k", [None, 5])
def test_workers_leave_the_bytes_of_one_process(
    top_k: int | None, several: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = [*SHARED, *LAYERS]
    if top_k is not None:
        (several / "corpus.yaml").write_text(CORPUS, encoding="utf-8")
        texts = [json.loads(line)["text"] for line in (several / "more.jsonl").read_text().splitlines()]
        (several / "corpus.txt").write_text("\n\n".join(texts))
        words = ["distill", "--recipe", "./corpus.yaml", "--teacher", TEACHER, "--general-teacher", PRETRAINED]
        words += ["--teacher-cache", "answers", "--set", f"stages.0.cache.top_k={top_k}", "--threads", "1"]
    alone = compress(*words, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    whole = read_cache(several / "answers")
    (several / "answers").rename(several / "undisturbed")
    workers = WorkersHere(claim="1")

    def choose(*_: Any, **__: Any) -> WorkersHere:
        """From here on there is no data: workers need none."""
        for name in ("more.jsonl", "corpus.txt"):
            (several / name).unlink(missing_ok=True)
        return workers

    monkeypatch.setattr(shards, "choose_executor", choose)
    done = compress(*words, "--workers", "2", "--output", "runs/shared")
    assert done.code == 0, done.err
    assert "worker-1 failed: killed" in done.err
    assert "1 shard left over: starting other workers" in done.err
    assert len(workers.begun) == 3
    assert read_cache(several / "answers") == whole
    model = "student/model.safetensors"
    assert sha(several / "runs/shared" / model) == sha(several / "runs/alone" / model)
    left = {claims.FOLDER, HANDED} & {path.name for path in (several / "runs/shared").rglob("*")}
    assert not left, "what the workers shared is removed"


def test_an_error_of_a_worker_ends_the_others(several: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """The teacher is another one when the workers load it."""
    weights = several / TEACHER / "model.safetensors"

    def change(*_: Any, **__: Any) -> WorkersHere:
        tensors = {name: tensor + 1 for name, tensor in load_file(weights).items()}
        save_file(tensors, weights.with_name("other"), {"format": "pt"})
        weights.with_name("other").replace(weights)
        weights.with_name("manifest.json").unlink()
        return WorkersHere()

    monkeypatch.setattr(shards, "choose_executor", change)
    done = compress(*SHARED, "--workers", "2", "--output", "runs/x")
    assert done.code == ExitCode.INPUT
    assert "the teacher cache was built with another teacher" in done.line
    assert not (several / "runs/x/stages/0-distill" / HANDED).exists()


def test_ctrl_c_while_workers_fill_names_the_command_that_goes_on(
    several: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = WorkersHere(stopped=True)
    monkeypatch.setattr(shards, "choose_executor", lambda *_, **__: workers)
    words = [*SHARED, "--workers", "2", "--output", "runs/x"]
    done = compress(*words)
    assert done.code == ExitCode.STOPPED
    assert (
        done.err.splitlines()[-1] == f"stopped by SIGINT; continue with: {shlex.join(['compress', *words, '--resume'])}"
    )
    workers.stopped = False
    again = compress(*words, "--resume")
    assert again.code == 0, again.err
    assert (several / "answers/task/fields/logits-32bit/shards.json").is_file()


@pytest.mark.slow
@pytest.mark.parametrize("where", [("--workers", "2"), pytest.param(("--on", "ray"), marks=needs_ray)])
def test_workers_write_what_one_process_writes_though_command_and_worker_are_killed(
    where: tuple[str, str], several: Path, compress: Cli
) -> None:
    alone = compress(*SHARED, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    whole = read_cache(several / "answers")
    assert len(list((several / "answers").rglob("shard-0*"))) > 4
    (several / "answers").rename(several / "undisturbed")
    words = (*SHARED, *where, "--output", "runs/shared")
    process = start(*words)
    wait_for_shards(several, process)
    process.kill()
    process.communicate()
    log = several / "runs/shared" / LOG
    while list_workers(log):  # they end by themselves
        time.sleep(0.02)
    inodes = {path: path.stat().st_ino for path in (several / "answers").rglob("shard-0*")}
    before = log.read_bytes()
    process = start(*words, "--resume")
    while process.poll() is None and b"teacher cache 0" not in log.read_bytes()[len(before) :]:
        time.sleep(0.02)
    kill_worker(log)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "shards are missing and will be computed" in err
    assert "worker-1 failed: killed (SIGKILL), as the system does when memory runs out; use fewer --workers" in err
    assert read_cache(several / "answers") == whole
    assert {path: path.stat().st_ino for path in inodes} == inodes, "what was there is not made again"
    student = "student/model.safetensors"
    assert sha(several / "runs/shared" / student) == sha(several / "runs/alone" / student)


@pytest.mark.slow
@needs_ray
def test_workers_of_a_lost_node_are_made_up_for(several: Path, compress: Cli) -> None:
    """Each worker waits a while after its first shard."""
    alone = compress(*SHARED, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    whole = read_cache(several / "answers")
    (several / "answers").rename(several / "undisturbed")
    sign, slow = "answers/task/fields/*/shard-0*", "folder.after_rename:1:sleep=5"
    done = run_losing_a_node(sign, *SHARED, "--output", "runs/shared", COMPRESS_FAULT=slow)
    assert done.returncode == 0, done.stderr
    assert read_cache(several / "answers") == whole
