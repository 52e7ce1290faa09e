"""`--workers`, `--sweep` and `--on` through the real command line: the same models whoever makes them."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import DISTILL, Cli, sha
from lost_node import run_losing_a_node
from torchrun_places import places

from compress.tracking import Store

SEEDS = (*DISTILL, "--set", "stages.0.control=true", "--seeds", "2", "--threads", "1")
WORKERS = ("--workers", "2")
IN_BACKGROUND = "trap '' INT; exec \"$@\""
"""A shell's command by which the next one ignores Ctrl-C, as those do that a script starts with &."""


def weights(folder: Path) -> dict[str, str]:
    """Digests of all weights of the models that runs left."""
    return {str(p.relative_to(folder)): sha(p) for p in sorted(folder.rglob("*/model.safetensors"))}


def tree(folder: Path) -> dict[str, list[str]]:
    """Name of a run → the names of those below it, in the store of a working folder."""
    client: Any = Store(f"sqlite:///{folder / 'mlruns/mlflow.db'}").client()
    runs = client.search_runs([client.get_experiment_by_name("compress").experiment_id])
    names = {run.info.run_id: run.info.run_name for run in runs}
    found: dict[str, list[str]] = {}
    for run in runs:
        above = run.data.tags.get("mlflow.parentRunId")
        if above is not None:
            found.setdefault(names[above], []).append(run.info.run_name)
    return {name: sorted(below) for name, below in found.items()}


@pytest.mark.store
@pytest.mark.thorough
def test_workers_make_the_same_models_and_resume_makes_what_is_missing(taught: Path, compress: Cli) -> None:
    alone = compress(*SEEDS, "--output", "runs/alone", "--json")
    assert alone.code == 0, alone.err
    both = compress(*SEEDS, *WORKERS, "--output", "runs/both", "--json")
    assert both.code == 0, both.err
    made = weights(taught / "runs/both")
    assert made == weights(taught / "runs/alone")
    assert len(made) >= 4, "two students and two controls"
    told, known = json.loads(both.out), json.loads(alone.out)
    assert told["summary"] == known["summary"]
    assert "seed-0: started" in both.err
    assert "2 of 2 ended" in both.err
    assert "done" in both.err
    assert "distill" in (taught / "runs/both/seed-1/job.log").read_text(encoding="utf-8")
    assert tree(taught)["both, 2 seeds"] == ["both/seed-0", "both/seed-1"], "several writers, one parent"
    (taught / "runs/both/seed-1/outcome.json").unlink()
    again = compress(*SEEDS, *WORKERS, "--output", "runs/both", "--resume")
    assert again.code == 0, again.err
    assert "seed-0: already done" in again.err
    assert "seed-1: already done" not in again.err
    assert weights(taught / "runs/both") == made


@pytest.mark.thorough
def test_a_worker_that_memory_runs_out_for_is_named_and_the_other_finishes(taught: Path, compress: Cli) -> None:
    log = taught / "runs/k/seed-0/job.log"
    killer = subprocess.Popen([sys.executable, "-c", KILLER, str(log)])
    done = compress(*SEEDS, *WORKERS, "--output", "runs/k")
    killer.wait()
    assert done.code == 5, done.err
    assert "seed-0 failed: killed (SIGKILL), as the system does when memory runs out; use fewer --workers" in done.err
    assert "seed-1: done" in done.err
    assert done.line.startswith("error: 1 of 2 runs failed: seed-0: killed (SIGKILL)")
    again = compress(*SEEDS, "--output", "runs/k", "--resume")  # one process goes on with what another left
    assert again.code == 0, again.err


KILLER = """
import os, pathlib, signal, sys, time
log = pathlib.Path(sys.argv[1])
while not log.exists() or b"distill" not in log.read_bytes():
    time.sleep(0.05)
for one in pathlib.Path("/proc").glob("[0-9]*/fd/1"):
    try:
        if os.readlink(one) == str(log):
            os.kill(int(one.parts[2]), signal.SIGKILL)
    except OSError:
        pass
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("number", "start"), [(signal.SIGINT, ()), (signal.SIGTERM, ("sh", "-c", IN_BACKGROUND, "sh"))]
)
def test_a_signal_ends_all_and_says_how_to_go_on(number: signal.Signals, start: tuple[str, ...], taught: Path) -> None:
    words = [*SEEDS, *WORKERS, "--set", "stages.0.training.steps=2000", "--output", "runs/c"]
    process = subprocess.Popen(
        [*start, sys.executable, "-m", "compress", *words],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    logs = [taught / f"runs/c/seed-{seed}/job.log" for seed in (0, 1)]
    while process.poll() is None and not all(p.exists() and "distill 1" in p.read_text() for p in logs):
        time.sleep(0.1)
    process.send_signal(number)
    _, err = process.communicate()
    assert process.returncode == 75, err
    assert "seed-0: stopped" in err
    assert "seed-1: stopped" in err
    assert "continue with: compress distill" in err.splitlines()[-1]
    assert "--output runs/c" in err.splitlines()[-1]
    assert all(any((log.parent / "stages").rglob("checkpoints/*")) for log in logs), "both wrote a checkpoint"
    shutil.rmtree(taught / "runs/c")


@pytest.mark.store
@pytest.mark.thorough
def test_a_sweep_with_seeds_is_one_table_under_one_parent(taught: Path, compress: Cli) -> None:
    words = (*DISTILL, "--sweep", "stages.0.training.learning_rate=1e-3,2e-3", "--seeds", "2", "--threads", "1")
    done = compress(*words, "--dry-run")
    assert done.out.splitlines() == [
        f"would run learning_rate-{rate}/seed-{seed}" for rate in (0.001, 0.002) for seed in (0, 1)
    ]
    done = compress(*words, "--output", "runs/grid")
    assert done.code == 0, done.err
    assert "means of 2 seeds; the intervals of the metric are over seeds" in done.out
    assert len(tree(taught)["grid, 4 runs"]) == 4
    client: Any = Store(f"sqlite:///{taught / 'mlruns/mlflow.db'}").client()
    found = client.search_runs([client.get_experiment_by_name("compress").experiment_id])
    rates = {r.info.run_name: r.data.params.get("stages.0.training.learning_rate") for r in found}
    assert rates["grid/learning_rate-0.002/seed-1"] == "0.002", "what differs is a parameter to compare by"
    assert (taught / "runs/grid/learning_rate-0.002/seed-1/student/model.safetensors").is_file()


@pytest.mark.thorough
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_ray_makes_the_same_models(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = compress(*SEEDS, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    words = [*SEEDS, "--on", "ray", "--output", "runs/ray"]
    done = subprocess.run([sys.executable, "-m", "compress", *words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert weights(taught / "runs/ray") == weights(taught / "runs/alone")
    assert "Ray: 1 node, 1 CPU for each run" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")
def test_a_run_whose_node_is_lost_goes_on_elsewhere(taught: Path, compress: Cli) -> None:
    words = (*DISTILL, "--seeds", "2", "--threads", "1", "--set", "stages.0.training.steps=60")
    words += ("--set", "stages.0.training.checkpoint_every=5")
    alone = compress(*words, "--output", "runs/alone")
    assert alone.code == 0, alone.err
    done = run_losing_a_node("runs/ray/seed-*/stages/*/checkpoints/*", *words, "--output", "runs/ray")
    assert done.returncode == 0, done.stderr
    assert weights(taught / "runs/ray") == weights(taught / "runs/alone")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--seeds", "2", "--workers", "0"), "'--workers': 0 is not in the range 1<=x<=1024"),
        (("--seeds", "2", "--workers", "two"), "'--workers': 'two' is not a valid number, or auto"),
        (("--workers", "2"), "--workers: is for several runs: this command makes one run; add --seeds N"),
        (("--on", "ray"), "--on: is for several runs: this command makes one run"),
        (("--seeds", "2", "--on", "spark"), "'--on': 'spark' is no cluster; give ray, or ray://HOST:PORT"),
        (("--seeds", "2", "--on", "http://me:secret@x:1"), "'http://***@x:1' is no cluster"),
        (("--check", "--workers", "2"), "--workers: is for several runs: --check makes one short run"),
        (("--curve", "--sweep", "seed=1,2"), "--sweep: cannot be combined with --curve"),
        (("--sweep", "seed=1,2", "--seeds", "2"), "--seeds: the sweep has values of seed"),
        (("--sweep", "stages.0.training.batch_rows=8,none"), "batch_rows"),
        (("--sweep", "stages.0.nothing=1,2"), "nothing"),
        (("--seeds", "2", "--label-column", "mood"), "mood"),
    ],
)
def test_what_does_not_fit_is_one_line(words: tuple[str, ...], said: str, taught: Path, compress: Cli) -> None:
    done = compress(*DISTILL, *words, "--output", "runs/x")
    assert (done.code, done.out) == (2, "")
    assert said in " ".join(done.line.split()), done.line
    assert not (taught / "runs/x").exists()


def test_workers_are_not_for_torchrun(taught: Path, compress: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in places(2)[0].items():
        monkeypatch.setenv(name, value)
    done = compress(*DISTILL, "--seeds", "2", "--workers", "2")
    assert (done.code, done.out) == (2, "")
    assert "torchrun: --workers does not support several processes; remove one of the two" in done.line
