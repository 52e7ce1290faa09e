"""A run that is killed or stopped anywhere goes on, and ends with the very bytes of one that was not."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_toy import DISTILL, QUICK, ROOT, SMOKE, TEACHER, Cli, Done, Server, copy_folder, sha
from haste import is_sent_to_store

from compress.errors import ExitCode
from compress.storage import atomic, faults, lock
from compress.tracking import Store

pytestmark = pytest.mark.thorough

RUN = (*DISTILL, "--output", "runs/x", "--quiet")
STEPS = 6


@pytest.fixture(scope="module")
def begun(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A working folder with a teacher, for runs that are each put away before the next."""
    folder = tmp_path_factory.mktemp("survival") / "work"
    copy_folder(made, folder)
    return folder


@pytest.fixture
def here(begun: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(begun)
    yield begun
    shutil.rmtree(begun / "runs/x", ignore_errors=True)


@pytest.fixture(scope="module")
def whole(begun: Path, server: Server) -> str:
    """The weights of a run that nobody disturbed."""
    done = server.run(begun, *DISTILL, "--output", "runs/whole", "--quiet")
    assert done.code == 0, done.err
    return weights(begun / "runs/whole")


def weights(run: Path) -> str:
    assert atomic.verify_folder(run / "student") == []
    return sha(run / "student/model.safetensors")


def leftovers(run: Path) -> list[str]:
    return [str(p) for p in run.rglob(".tmp-*")]


def resume(server: Server, here: Path) -> Done:
    done = server.run(here, *RUN, "--resume")
    assert done.code == 0, done.err
    assert json.loads((here / "runs/x/compress-run.json").read_text())["status"] == "finished"
    return done


# --- killed -----------------------------------------------------------------------------------------------------


def test_killed_at_a_step(here: Path, server: Server, whole: str) -> None:
    done = server.run(here, *RUN, signal_at=(4, "SIGKILL"))
    assert done.code == -signal.SIGKILL
    assert lock.status(here / "runs/x").state == "dead"
    resume(server, here)
    assert weights(here / "runs/x") == whole
    assert leftovers(here / "runs/x") == []
    assert list((here / "runs/x/stages/0-distill/checkpoints").iterdir()) == [], "of no use any more, and large"


def test_another_seed_gives_other_bytes(here: Path, server: Server, whole: str) -> None:
    """The negative control: a comparison that cannot fail shows nothing."""
    done = server.run(here, *RUN, "--seed", "1")
    assert done.code == 0, done.err
    assert weights(here / "runs/x") != whole


@pytest.fixture(scope="module")
def counted() -> dict[bool, Counter[str]]:
    """What `passings` counts once for all tests: of a run that sends what it tracks, and of one that does not."""
    return {}


@pytest.fixture
def passings(here: Path, compress: Cli, counted: dict[bool, Counter[str]]) -> Counter[str]:
    """Fault point → how often an undisturbed run passes it."""
    sends = is_sent_to_store()
    if sends not in counted:
        with faults.record_points() as hits:
            assert compress(*RUN).code == 0
        shutil.rmtree(here / "runs/x")
        counted[sends] = Counter(name for name, _ in hits)
    return counted[sends]


def killed_at(here: Path, server: Server, whole: str, name: str, nth: int) -> None:
    done = server.run(here, *RUN, fault=f"{name}:{nth}:kill", sends=True)
    assert done.code == -signal.SIGKILL, (name, nth, done)
    assert f"fault: {name} hit {nth}: kill" in done.err
    resume(server, here)
    assert weights(here / "runs/x") == whole, (name, nth)
    assert leftovers(here / "runs/x") == [], (name, nth)
    shutil.rmtree(here / "runs/x")


EARLY = ("lock.after_acquire", "lock.after_record", "journal.after_open", "file.after_create")
KILLS = 5


def killed_in_turn(here: Path, server: Server, whole: str, points: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """A run is killed at the first of these points, when it goes on at the second, and so on. points: names, with how
    often an undisturbed run passes each. Returns those that are left."""
    killed, words = 0, RUN
    for name, count in points[:KILLS]:
        nth = 1 if name in EARLY else max(1, (count + 1) >> (1 + killed))  # the rest of a run passes fewer
        done = server.run(here, *words, fault=f"{name}:{nth}:kill", sends=True)
        if killed and done.code == 0:  # the rest of this run did not pass it: the next run is killed there
            break
        assert done.code == -signal.SIGKILL, (name, nth, done)
        assert f"fault: {name} hit {nth}: kill" in done.err
        killed, words = killed + 1, (*RUN, "--resume")
    else:
        resume(server, here)
    assert weights(here / "runs/x") == whole, points[:killed]
    assert leftovers(here / "runs/x") == [], points[:killed]
    shutil.rmtree(here / "runs/x")
    return points[killed:]


def test_killed_at_every_fault_point(here: Path, passings: dict[str, int], server: Server, whole: str) -> None:
    """At one passing of each: the first of those with which a run begins, one in the middle of the others."""
    assert {"checkpoint.after_save", "folder.after_rename", "journal.after_write"} < passings.keys()
    left = sorted(passings.items())
    while left:
        left = killed_in_turn(here, server, whole, left)


@pytest.mark.slow
@pytest.mark.store
@pytest.mark.parametrize("part", ["checkpoint", "file", "folder", "journal", "lock", "remove", "tracking"])
def test_killed_at_the_first_and_last_passings(
    part: str, here: Path, passings: dict[str, int], server: Server, whole: str
) -> None:
    """Of every fault point, at four of its passings."""
    counts = {name: count for name, count in passings.items() if name.startswith(f"{part}.")}
    assert counts
    for name, count in sorted(counts.items()):
        last = 1 if part == "tracking" else count  # how often the sender sends depends on the clock
        for nth in sorted({1, 1 + last // 4, 1 + 3 * last // 4, last}):
            killed_at(here, server, whole, name, min(nth, last))


@pytest.mark.store
def test_a_killed_run_is_one_run_in_the_store(here: Path, server: Server, whole: str) -> None:
    server.run(here, *RUN, fault="folder.after_rename:3:kill")
    resume(server, here)
    client: Any = Store(f"sqlite:///{here / 'mlruns/mlflow.db'}").client()
    experiment = client.get_experiment_by_name("compress").experiment_id
    folder = str(here / "runs/x")
    (run,) = client.search_runs([experiment], f"tags.`compress.folder` = '{folder}'", order_by=["start_time DESC"])[:1]
    assert run.info.status == "FINISHED"
    losses = client.get_metric_history(run.info.run_id, "train/loss")
    assert sorted(point.step for point in losses) == list(range(1, STEPS + 1)), "no step lost, none twice"


def test_a_full_disk_at_any_moment(here: Path, passings: dict[str, int], server: Server, whole: str) -> None:
    """Either the run gets over it, or it says so and goes on later; the bytes are the same."""
    codes = set()
    for nth in (1, passings["file.after_chunk"] // 2):
        done = server.run(here, *RUN, fault=f"file.after_chunk:{nth}:enospc", sends=True)
        assert done.code in (ExitCode.OK, ExitCode.RESOURCES), done
        assert "Traceback" not in done.err
        assert done.code == 0 or "no space left on the disk" in done.line or "disk" in done.line, done.line
        codes.add(done.code)
        resume(server, here)
        assert weights(here / "runs/x") == whole, nth
        shutil.rmtree(here / "runs/x")
    assert ExitCode.RESOURCES in codes


# --- stopped ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_stopped_by_a_signal(name: str, here: Path, server: Server, whole: str) -> None:
    done = server.run(here, *RUN, signal_at=(4, name))
    assert done.code == ExitCode.STOPPED
    assert done.line == (
        f"stopped by {name} after step 4 of 6; the state is saved; continue with: compress {' '.join(RUN)} --resume"
    )
    assert json.loads((here / "runs/x/compress-run.json").read_text())["status"] == "stopped"
    assert lock.status(here / "runs/x").state == "none"
    resume(server, here)
    assert weights(here / "runs/x") == whole


SAVING = [
    ("checkpoint.after_files", 2),  # the files of the checkpoint at step 4 are there, but not yet under its name
    ("checkpoint.after_save", 2),
]


TWICE = [
    (SAVING[0], "SIGTERM", "SIGINT"),
    (SAVING[1], "SIGHUP", "SIGHUP"),
]


@pytest.mark.parametrize(
    ("point", "first", "second"), TWICE, ids=lambda value: value if isinstance(value, str) else value[0]
)
def test_a_second_signal_while_a_checkpoint_is_written(
    point: tuple[str, int], first: str, second: str, here: Path, server: Server, whole: str
) -> None:
    """It ends at once, the last whole checkpoint stays, and the run goes on from it to the same bytes."""
    name, nth = point
    done = server.run(here, *RUN, fault=f"{name}:{nth}:sleep=600", signal_at=(4, first), second=second)
    assert done.code == 128 + signal.Signals[second], done
    assert f"fault: {name} hit {nth}" in done.err
    words = " ".join(RUN)
    kept = f"the last checkpoint is kept; continue with: compress {words} --resume"
    assert done.line == f"ended at once by a second signal; {kept}"
    steps = {path.name for path in (here / "runs/x/stages/0-distill/checkpoints").glob("step-*")}
    assert steps, "the checkpoint before is kept"
    assert lock.status(here / "runs/x").state == "dead"
    resume(server, here)
    assert weights(here / "runs/x") == whole
    assert leftovers(here / "runs/x") == []


def test_a_second_signal_while_a_server_does_not_answer(here: Path, server: Server, whole: str) -> None:
    """The checkpoint is written; the run only waits until its last metrics are sent."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        words = (*RUN, "--tracking-uri", address)
        saved = "checkpoint.after_save:2:sleep=0"  # the second signal waits until it has said so
        done = server.run(here, *words, fault=saved, signal_at=(4, "SIGTERM"), second="SIGTERM", sends=True)
    assert done.code == 128 + signal.SIGTERM, done
    assert [path.name for path in (here / "runs/x/stages/0-distill/checkpoints").glob("step-*4")]
    resume(server, here)
    assert weights(here / "runs/x") == whole


QUANTIZED = f"""
extends: q8bert
description: ranges that follow, then stand still
data: {{max_length: 24}}
{QUICK}
stages:
  0: {{rows: 16, sensitivity: false}}
  1:
    control: false
    freeze_ranges: 0.5
    training: {{epochs: null, steps: 6, batch_rows: 8, validate_every: 3, checkpoint_every: 2}}
"""


def test_quantized_training_that_was_stopped_goes_on(here: Path, server: Server) -> None:
    """Ranges, learned or followed, are as much a part of the state as weights."""
    (here / "rounded.yaml").write_text(QUANTIZED, encoding="utf-8")
    words = ("quantize", TEACHER, "--recipe", "./rounded.yaml", "--data", "data", "--no-onnx", "--quiet")
    done = server.run(here, *words, "--output", "runs/whole-q")
    assert done.code == 0, done.err
    done = server.run(here, *words, "--output", "runs/x", signal_at=(4, "SIGINT"))
    assert done.code == ExitCode.STOPPED, done.err
    assert "stopped by SIGINT after step 4 of 6" in done.line
    done = server.run(here, *words, "--output", "runs/x", "--resume")
    assert done.code == 0, done.err
    for model in ("model", "stages/1-distill/model"):
        files = [here / run / model / "model.safetensors" for run in ("runs/x", "runs/whole-q")]
        assert sha(files[0]) == sha(files[1]), model
    shutil.rmtree(here / "runs/whole-q")


WITH_TEACHER = (*SMOKE, "--set", "seed=4")


@pytest.fixture(scope="module")
def unstopped(begun: Path, server: Server) -> Path:
    """The run folder of a recipe with its teacher that nobody disturbed; the teacher is put away beside it."""
    run = begun / "runs/unstopped"
    done = server.run(begun, *WITH_TEACHER, "--quiet", "--output", "runs/unstopped")
    assert done.code == 0, done.err
    shutil.move(begun / "runs/teachers", begun / "teachers")
    return run


def test_stopped_while_the_teacher_is_made(here: Path, server: Server, unstopped: Path) -> None:
    """The command that continues is the person's own, not the teacher's."""
    request = (*WITH_TEACHER, "--quiet")
    done = server.run(here, *request, "--output", "runs/x", signal_at=(8, "SIGTERM"))
    assert done.code == ExitCode.STOPPED
    command = re.fullmatch(r"stopped by SIGTERM after step 2 of 6; .* continue with: compress (.*)", done.line)
    assert command is not None, done.line
    assert command[1] == f"{' '.join(request)} --output runs/x --resume"
    done = server.run(here, *command[1].split())
    assert done.code == 0, done.err
    assert weights(here / "runs/x") == weights(unstopped)
    shutil.rmtree(here / "runs/teachers")


@pytest.mark.parametrize("step", [2, 8])
def test_resume_without_output_finds_the_interrupted_teacher(step: int, here: Path, server: Server) -> None:
    """The run has no folder of its own yet: --resume goes on with the teacher, in its first and its second stage."""
    request = (*SMOKE, "--quiet", "--set", "seed=5")
    for name in ("", "-2"):
        shutil.rmtree(here / f"runs/smoke{name}", ignore_errors=True)
    shutil.rmtree(here / "runs/teachers", ignore_errors=True)
    nothing = server.run(here, *request, "--resume")
    assert nothing.code == ExitCode.INPUT
    assert "there is no unfinished run of smoke to resume" in nothing.line
    done = server.run(here, *request, signal_at=(step, "SIGTERM"))
    assert done.code == ExitCode.STOPPED, done.err
    assert done.line.endswith(f"continue with: compress {' '.join(request)} --output runs/smoke --resume")
    assert not (here / "runs/smoke").exists()
    done = server.run(here, *request, "--max-length", "20", "--resume")
    assert "there is no unfinished run of smoke to resume" in done.line, "that teacher reads other data"
    done = server.run(here, *(word for word in request if word != "--quiet"), "--resume")
    assert done.code == 0, done.err
    (teacher,) = (here / "runs/teachers").iterdir()
    assert f"teacher: resuming the interrupted run of recipe smoke-teacher in runs/teachers/{teacher.name}" in done.err
    assert atomic.verify_folder(here / "runs/smoke/student") == []
    shutil.rmtree(here / "runs/smoke")
    shutil.rmtree(here / "runs/teachers")


def test_seeds_that_were_stopped_go_on_together(here: Path, server: Server) -> None:
    """The command that continues names the folder of all seeds, given or not, never the one of the seed it was at."""
    request = (*DISTILL, "--seeds", "2", "--quiet")
    given = (*request, "--output", "runs/many")
    default = (*request, "--output", "runs/task-seeds")
    for words, wanted, step in ((given, given, 2), (request, default, 8)):
        done = server.run(here, *words, signal_at=(step, "SIGINT"))
        assert done.code == ExitCode.STOPPED
        assert done.line.endswith(
            f"after step 2 of 6; the state is saved; continue with: compress {' '.join(wanted)} --resume"
        )
    done = server.run(here, *default, "--resume")
    assert done.code == 0, done.err
    base = here / "runs/task-seeds"
    assert sorted(p.name for p in base.iterdir()) == ["seed-0", "seed-1", "summary"]
    done = server.run(here, *request)
    assert done.code == 0, done.err
    assert sorted(p.name for p in (here / "runs/task-seeds-2").iterdir()) == ["seed-0", "seed-1", "summary"]
    for name in ("many", "task-seeds", "task-seeds-2"):
        shutil.rmtree(here / "runs" / name)


def test_a_teacher_that_was_not_told_to_its_end_is_told(here: Path, server: Server, unstopped: Path) -> None:
    """Its model lay there when its run was killed, but not its figures."""
    shutil.move(unstopped.parents[1] / "teachers", here / "runs/teachers")
    (teacher,) = (here / "runs/teachers").iterdir()
    record = json.loads((teacher / "compress-run.json").read_text())
    (teacher / "compress-run.json").write_text(json.dumps(record | {"status": "running"}))
    done = server.run(here, *WITH_TEACHER, "--output", "runs/x")
    assert done.code == 0, done.err
    assert "2-finetune: already done" in done.err
    assert json.loads((teacher / "compress-run.json").read_text())["status"] == "finished"
    shutil.rmtree(here / "runs/teachers")


def test_the_real_process_stops_and_goes_on(here: Path, server: Server, whole: str) -> None:
    """A process of its own, as a person starts it: SIGTERM between two steps, and the command that it names."""
    process = start(here, *DISTILL, fault="checkpoint.after_save:1:sleep=2")  # so long the signal has to arrive
    wait_for(here / "runs/task/stages/0-distill/checkpoints", process)
    process.send_signal(signal.SIGTERM)
    said = process.communicate(timeout=120)[1]
    assert process.returncode == ExitCode.STOPPED, said
    assert "Traceback" not in said
    match = re.search(rf"stopped by SIGTERM after step (\d+) of {STEPS}; .* continue with: compress (.*)", said)
    assert match is not None, said
    assert match[2].endswith("--output runs/task --resume")
    done = server.run(here, *match[2].split(), "--quiet")
    assert done.code == 0, done.err
    assert weights(here / "runs/task") == whole
    shutil.rmtree(here / "runs/task")


def start(folder: Path, *args: str, fault: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COMPRESS_FAULT": fault}
    command = [sys.executable, "-m", "compress", *args]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stdout=pipe, stderr=pipe)


def wait_for(folder: Path, process: subprocess.Popen[str]) -> None:
    """Until there is a checkpoint in `folder`."""
    until = time.monotonic() + 120
    while not any(folder.glob("step-*")):
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until
        time.sleep(0.02)


# --- two at once, and what changed meanwhile --------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_who_runs(here: Path, compress: Cli) -> None:
    with lock.run_lock(here / "runs/x") as holder:
        for more in ((), ("--resume",)):
            done = compress(*RUN, *more)
            assert done.code == ExitCode.REFUSED
            assert done.line == (
                f"error: --output runs/x: another run uses this folder: {holder}; "
                "wait for it, stop it, or choose another folder"
            )
    assert f"process {os.getpid()} on " in done.line


def test_data_that_changed_is_not_gone_on_with(here: Path, server: Server) -> None:
    assert server.run(here, *RUN, signal_at=(4, "SIGTERM")).code == ExitCode.STOPPED
    file = here / "data/train.jsonl"
    sound = file.read_bytes()
    try:
        file.write_bytes(sound.replace(b"film", b"sofa", 1))
        done = server.run(here, *RUN, "--resume")
    finally:
        file.write_bytes(sound)
    assert (done.code, done.line) == (
        ExitCode.REFUSED,
        "error: runs/x: the run cannot be resumed: its data changed since it started; "
        "restore the original, or start a new run in another folder",
    )


CHANGES = (
    ("--seed", "9"),
    ("--set", "stages.0.training.learning_rate=1e-4"),
    ("--max-length", "20"),
    ("--teacher", "runs/other"),
)


def test_another_request_does_not_go_on(here: Path, server: Server) -> None:
    shutil.copytree(here / "runs/teacher/model", here / "runs/other", dirs_exist_ok=True)
    done = server.run(here, *RUN, signal_at=(1, "SIGTERM"))
    assert done.code == ExitCode.STOPPED
    for change in CHANGES:
        done = server.run(here, *RUN, *change, "--resume")
        assert done.code == ExitCode.REFUSED, change
        why = "this folder was started with another recipe or other options: its command was: compress distill"
        assert why in done.line, change
    resume(server, here)


def test_the_result_of_one_verb_is_not_taken_for_that_of_another(here: Path, compress: Cli) -> None:
    """Both work for the same recipe and leave a folder `model`."""
    args = ("--recipe", "smoke-teacher", "--corpus", "corpus.txt", "--output", "runs/x", "--quiet")
    assert compress("tokenizer", *args).code == 0
    done = compress("pretrain", *args, "--tokenizer", "runs/x/model", "--resume")
    assert done.code == ExitCode.REFUSED
    assert "another recipe or other options" in done.line


def test_a_damaged_result_is_told(here: Path, server: Server) -> None:
    assert server.run(here, *RUN).code == 0
    file = here / "runs/x/student/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    done = server.run(here, *RUN, "--resume")
    assert done.code == ExitCode.DATA
    assert done.line.startswith("error: runs/x/student: the result of a finished stage is damaged: ")
    assert done.line.endswith("; remove it to run the stage again")
    shutil.rmtree(here / "runs/x/student")
    resume(server, here)


# --- the store is gone ------------------------------------------------------------------------------------------


@pytest.mark.store
def test_a_dead_tracking_server_does_not_stop_a_run(here: Path, server: Server, whole: str) -> None:
    retries = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}  # the pauses before each would add up to ten seconds
    done = server.run(here, *RUN, "--tracking-uri", "http://127.0.0.1:9", **retries)
    assert done.code == 0, done.err
    assert weights(here / "runs/x") == whole
    left = r"tracking: \d+ records( of \d+ runs)? are not uploaded yet; upload them with: compress sync runs/x"
    assert re.search(left, done.err)
    synced = server.run(here, "sync", "runs/x", "--tracking-uri", f"sqlite:///{here / 'mlruns/mlflow.db'}")
    assert synced.code == 0, synced.err
    assert "FINISHED" in synced.out
