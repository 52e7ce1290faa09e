"""`torchrun --nproc-per-node 2 -m compress …`: one run by two processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from e2e_toy import DATA, DISTILL, ROOT, TEACHER, Server, sha
from user_packages import write_packages

from compress.storage import safe
from compress.tracking import Store

pytestmark = pytest.mark.thorough

EXACT = ("--set", "stages.1.encoder.dropout=0", "--set", "stages.*.training.precision=fp32")
# Adam divides by the gradient's own size: without this, rounding decides over parameters that hardly have a gradient.
CALM = ("--set", "stages.*.training.eps=1e-3")


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in safe.load_safetensors(folder / "model.safetensors").items()}


def told(err: str) -> list[str]:
    """Lines without their figures."""
    return [line.split(" loss ")[0] for line in err.splitlines() if "gap" not in line]


def same(ours: Path, theirs: Path) -> None:
    a, b = weights(ours), weights(theirs)
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.store
def test_a_recipe_by_two_processes_makes_the_model_that_one_makes(work: Path, server: Server) -> None:
    """Tokenizer, pretraining and fine-tuning: the first process writes, measures and talks alone."""
    words = ("run", "smoke-teacher", "--no-cache", *DATA, *EXACT, *CALM, "--set", "stages.2.dropout=0")
    one = server.run(work, *words, "--output", "runs/one")
    assert one.code == 0, one.err
    two = server.run(work, *words, "--output", "runs/two", world=2)
    assert (two.code, two.others) == (0, (0,)), two.err
    for part in ("stages/1-pretrain/model", "model"):
        same(work / "runs/two" / part, work / "runs/one" / part)

    assert told(two.err) == told(one.err.replace(" one ", " two ").replace("timing one", "timing two")), "said once"
    assert two.out.count("use it ") == 1
    client = Store(f"sqlite:///{work / 'mlruns' / 'mlflow.db'}").client()
    runs = client.search_runs([client.get_experiment_by_name("compress").experiment_id])  # pyright: ignore[reportOptionalMemberAccess]
    processes = [run.data.params.get("processes") for run in runs if (run.info.run_name or "").startswith("two")]
    assert [n for n in processes if n] == ["2", "2"], "pretraining and fine-tuning, a run each"


def test_a_distillation_stopped_in_one_process_goes_on_in_both(taught: Path, server: Server) -> None:
    words = (*DISTILL, "--set", "stages.0.control=true", "--set", "stages.0.noise={rate: 0.2}", "--output")
    whole = server.run(taught, *words, "runs/whole", world=2)
    assert (whole.code, whole.others) == (0, (0,)), whole.err
    # The ninth step is one of the control's.
    cut = server.run(taught, *words, "runs/cut", world=2, signal_at=(9, "SIGTERM"), rank=1)
    assert (cut.code, cut.others) == (75, (75,)), cut.err
    assert "; continue with: torchrun --nproc-per-node 2 -m compress distill" in cut.line
    assert cut.err.count("stopped ") == 1, "told once"
    resumed = server.run(taught, *words, "runs/cut", "--resume", world=2)
    assert (resumed.code, resumed.others) == (0, (0,)), resumed.err
    for part in ("student", "control"):
        file = Path(part, "model.safetensors")
        assert sha(taught / "runs/cut" / file) == sha(taught / "runs/whole" / file)


def test_the_first_process_fills_the_teacher_cache_and_both_read_it(taught: Path, server: Server) -> None:
    """Students of the live teacher and of the cache are the same, by two processes too."""
    words = (*DISTILL, *CALM, "--set", "stages.*.training.precision=fp32", "--output")
    live = server.run(taught, *words, "runs/live", world=2)
    assert (live.code, live.others) == (0, (0,)), live.err
    cache = ("--teacher-cache", "answers", "--set", "stages.0.cache.bits=32")
    kept = server.run(taught, *words, "runs/kept", *cache, world=2)
    assert (kept.code, kept.others) == (0, (0,)), kept.err
    assert kept.err.count("teacher cache answers/task: 64 rows") == 1
    same(taught / "runs/kept/student", taught / "runs/live/student")


@pytest.mark.parametrize("place", [0, 1])
def test_a_killed_process_leaves_a_run_that_goes_on_to_the_same_bytes(place: int, taught: Path, server: Server) -> None:
    words = (*DISTILL, "--quiet", "--output", "runs/x")
    whole = server.run(taught, *words[:-1], "runs/whole", world=2)
    assert (whole.code, whole.others) == (0, (0,)), whole.err
    done = server.run(taught, *words, world=2, signal_at=(5, "SIGKILL"), rank=place)
    assert sorted((done.code, *done.others)) == [-9, 75]
    if place == 1:
        assert (
            "stopped: another process of this run died; the last checkpoint is kept; continue with: torchrun"
            in done.err
        )
    again = server.run(taught, *words, "--resume", world=2)
    assert (again.code, again.others) == (0, (0,)), again.err
    student = "student/model.safetensors"
    assert sha(taught / "runs/x" / student) == sha(taught / "runs/whole" / student)


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("distill", "--recipe", "smokey"), 2, "smokey"),
        (
            (*DISTILL, "--set", "stages.0.training.batch_rows=1"),
            2,
            "1 rows per step cannot be divided among 2 processes",
        ),
        (("evaluate", TEACHER, "--data", "data"), 2, "torchrun: this command does not support several processes"),
        (("pretrain", "--no-such"), 2, "no such option '--no-such'"),
    ],
)
def test_what_is_wrong_is_said_once(
    words: tuple[str, ...], code: int, message: str, taught: Path, server: Server
) -> None:
    done = server.run(taught, *words, world=2)
    assert (done.code, done.others) == (code, (code,)), done.err
    assert done.err.count("error: ") == 1
    assert message in done.line


def test_torchrun_itself_on_a_corpus_that_is_read_from_its_files(work: Path, server: Server) -> None:
    """Two real processes share a streamed corpus, and make the model that one makes."""
    tokenizer = server.run(work, "tokenizer", "--recipe", "smoke-teacher", *DATA[2:], "--output", "runs/tok")
    assert tokenizer.code == 0, tokenizer.err
    words = (
        "pretrain", "--recipe", "smoke-teacher", "--corpus", "corpus.txt", "--tokenizer", "runs/tok/model",
        "--set", "corpus.stream=true", *EXACT, *CALM, "--quiet", "--device", "cpu", "--output",
    )  # fmt: skip
    os.environ["COMPRESS_CACHE"] = str(work / "cache")
    one = server.run(work, *words, "runs/one")
    assert one.code == 0, one.err
    write_packages(work, ("evaluation", "recipes", "tests"))  # the processes import none of these
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone", "-m", "compress"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launch, *words, "runs/two"], cwd=work, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    same(work / "runs/two/model", work / "runs/one/model")
    record = json.loads((work / "runs/two/compress-run.json").read_text())
    assert record["command"].startswith("torchrun --nproc-per-node 2 -m compress pretrain")


@pytest.mark.slow
def test_torchrun_starts_killed_processes_again(taught: Path, server: Server) -> None:
    """With --resume from the beginning, each restart goes on at the last checkpoint."""
    words = (*DISTILL, "--quiet", "--device", "cpu", "--set", "stages.0.training.steps=40", "--output")
    whole = server.run(taught, *words, "runs/whole", world=2)
    assert (whole.code, whole.others) == (0, (0,)), whole.err
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]
    launch += ["--max-restarts", "3", "-m", "compress"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen([*launch, *words, "runs/x", "--resume"], cwd=taught, env=environment,
                               stderr=subprocess.PIPE, text=True)  # fmt: skip
    while process.poll() is None and not list((taught / "runs/x").glob("stages/*/checkpoints/*")):
        time.sleep(0.02)
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        if b"\0RANK=1\0" in Path(f"/proc/{child}/environ").read_bytes():
            os.kill(int(child), signal.SIGKILL)
    _, err = process.communicate()
    assert process.returncode == 0, err
    assert "SIGKILL" in err or "exitcode: -9" in err
    student = "student/model.safetensors"
    assert sha(taught / "runs/x" / student) == sha(taught / "runs/whole" / student)
