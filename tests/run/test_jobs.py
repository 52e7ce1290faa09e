"""Runs as jobs: what is handed to another process and read back, which failures end the rest, how a job ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measured_models import ROWS, measured_model, scored_rows

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions
from compress.cpus import Cpus, share_cpus
from compress.errors import ExitCode, Stopped, UserError
from compress.recipe import LoadedRecipe, Recipe
from compress.run import RunReport
from compress.run.folder import Request, RunFolder
from compress.run.jobs import Job, JobSet, Outcome, begin_jobs, child, memory, processes, run_jobs, runner
from compress.run.jobs.child import explain_end, start
from compress.run.jobs.job import pack, place_jobs, read_failure, unpack, write_failure
from compress.run.jobs.outcome import OUTCOME, write_outcome
from compress.run.jobs.processes import Ended, LocalWorkers, read_tail
from compress.storage.signals import StopFlag
from compress.tracking import Parent
from evaluation.quality.runs import difference_over_runs


@pytest.fixture(scope="module")
def recipe() -> Recipe:
    return LoadedRecipe.read("smoke").recipe


def make_job(recipe: Recipe, folder: Path, name: str = "seed-0", **more: Any) -> Job:
    return Job(name, recipe, folder / name, f"{name}, 1 of 1", **more)


def share(folder: Path, **options: Any) -> JobSet:
    return JobSet(folder, RunOptions(**options), None, {}, None, False)


# --- outcomes -----------------------------------------------------------------------------------------------------


def test_an_outcome_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = [measured_model("teacher", 190), measured_model("control", 170), measured_model("student", 180)]
    made.append(measured_model("stage-1", None, values={"quality/f1": float("nan")}))
    report = RunReport(tmp_path, tmp_path / "student", made, ["a line"])
    write_outcome(report, draws=False)
    read = Outcome.load(tmp_path)
    assert read.report["notes"] == ["a line"]
    assert read.control is read.measured[1], "the best model on hard labels"
    for before, after in zip(made[:3], read.measured, strict=False):
        assert after.measurement == before.measurement
        assert (after.subject, after.quality, after.metric) == (before.subject, before.quality, before.metric)
        assert after.as_json() == before.as_json()
    assert read.measured[3].quality is None
    assert read.find("nobody") is None


def test_intervals_over_runs_are_the_same_from_an_outcome(tmp_path: Path) -> None:
    ours = [measured_model("student", n) for n in (180, 176)]
    theirs = [scored_rows(170), scored_rows(175)]
    read = []
    for place, one in enumerate(ours):
        folder = tmp_path / str(place)
        write_outcome(RunReport(folder, folder, [one]), draws=True)
        read.append(Outcome.load(folder).measured[0].scored)
    figures = [m.scored.metrics["accuracy"] for m in ours if m.scored is not None]
    known = [scored.metrics["accuracy"] for scored in theirs]
    recorded = [scored.metrics["accuracy"] for scored in read if scored is not None]
    assert difference_over_runs(ROWS, recorded, known) == difference_over_runs(ROWS, figures, known)
    assert difference_over_runs(ROWS, known, recorded) == difference_over_runs(ROWS, known, figures)


@pytest.mark.parametrize("text", ['{"version": 0}', '{"version": 1}', '{"version": 1, "models": [{}]}', "no"])
def test_a_file_that_is_no_outcome_is_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / OUTCOME).write_text(text)
    with pytest.raises(UserError, match=r"outcome\.json"):
        Outcome.load(tmp_path)


# --- their folder -------------------------------------------------------------------------------------------------


def test_several_runs_get_a_new_folder_or_go_on_in_theirs(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    other = recipe.model_copy(update={"seed": 9})

    def place(of: Recipe = recipe, **options: Any) -> str:
        names = ("seed-0", "seed-1")
        jobs, shared = place_jobs(
            "x", lambda base: [make_job(of, base, name) for name in names], RunOptions(**options), None, {}
        )
        assert [job.folder.parent for job in jobs] == [shared.base] * 2
        return str(shared.base)

    def begin(name: str, done: int, of: Recipe = recipe) -> None:
        """Two runs, the first `done` of them to their end."""
        for number in range(2):
            job = make_job(of, Path("runs") / name, f"seed-{number}")
            status = "finished" if number < done else "stopped"
            RunFolder(job.folder, share(tmp_path).request(job), True).record(status, {}, "here")
            (job.folder / OUTCOME).touch()

    def refuse(of: Recipe = recipe) -> None:
        with pytest.raises(UserError) as found:
            place(of, resume=True)
        assert found.value.code == ExitCode.INPUT
        assert found.value.line() == (
            "runs/x: there is no unfinished run of x to resume; name its folder with --output, or remove --resume"
        )

    assert place() == "runs/x"
    refuse()
    (tmp_path / "runs/x/notes").mkdir(parents=True)
    refuse()
    (tmp_path / "runs/x/notes").rename(tmp_path / "runs/x/summary")
    assert (place(), place(resume=True)) == ("runs/x-2", "runs/x"), "it was stopped before its first run began"
    begin("x", 2)
    begin("x-2", 1)
    begin("x-3", 2)
    begin("x-4", 1, other)
    (tmp_path / "runs/x-5").mkdir()
    assert (place(), place(resume=True)) == ("runs/x-6", "runs/x-2")
    assert place(other, resume=True) == "runs/x-4"
    begin("x-2", 2)
    assert place(resume=True) == "runs/x-3", "the newest, which shows its results again"
    assert place(output=Path("runs/x-4")) == "runs/x-4"
    RunFolder(Path("runs/x-5"), Request(recipe), True).record("stopped", {}, "here")
    assert place(recipe.model_copy(update={"seed": 7}), resume=True) == "runs/x-4", "x-5 is one run; this is refused"


def test_two_commands_that_start_at_once_get_two_folders(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    taken = []

    def check(_: Any, shared: JobSet) -> None:
        if not taken:
            shared.base.mkdir(parents=True)  # as another command does meanwhile
        taken.append(str(shared.base))

    monkeypatch.setattr(runner, "_check_jobs", check)
    _, shared = begin_jobs("x", lambda base: [make_job(recipe, base, "seed-0")], RunOptions(), None, {}, Console())
    assert taken == ["runs/x", "runs/x-2"]
    assert str(shared.base) == "runs/x-2"
    assert shared.base.is_dir()


# --- to another process -------------------------------------------------------------------------------------------


def test_a_job_is_the_same_on_the_other_side(recipe: Recipe, tmp_path: Path) -> None:
    job = make_job(recipe, tmp_path, tags={"a": "b"}, params={"stages.0.training.steps": 5}, draws=True)
    options = RunOptions(threads=2, tracking_uri="http://x", chain=ChainOptions(until="distill"), device="cpu")
    shared = JobSet(tmp_path, options, "distill", {"general_teacher": tmp_path / "g"}, Parent("k", "e"), True)
    packed = pack(job, shared)
    other, others = unpack(packed)
    assert (other.name, other.folder, other.tags) == (job.name, job.folder, job.tags)
    assert other.draws
    assert other.params == {"stages.0.training.steps": "5"}, "as the tracked run has it"
    assert other.recipe.hash() == recipe.hash(), "else no run could be resumed by another process"
    assert others == shared
    assert packed["argv"] == sys.argv


def test_the_tracked_run_of_a_job_is_named_after_the_command(recipe: Recipe, tmp_path: Path) -> None:
    shared = JobSet(tmp_path / "task-seeds", RunOptions(), "distill", {}, None, False)
    run = shared.make_run(make_job(recipe, tmp_path / "task-seeds/seed-0", "seed-0"), Console(quiet=True))
    assert run.journal.name == "task-seeds/seed-0", "in a list of all runs, seed-0 would be the seed of anything"


def test_a_kill_by_the_kernel_is_told_from_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counts = tmp_path / "vmstat"
    monkeypatch.setattr(memory, "_COUNTS", counts)
    unknown = memory.KillWatch()
    counts.write_text("pgfault 7\noom_kill 2\n")
    assert not unknown.has_killed(), "nobody counted before"
    watch = memory.KillWatch()
    assert not watch.has_killed()
    counts.write_text("pgfault 7\noom_kill 3\n")
    assert watch.has_killed()
    assert not watch.has_killed(), "each is told once"
    error = explain_end(-9, tmp_path, tmp_path / "log", "use fewer --workers", by_kernel=True)
    assert isinstance(error, UserError)
    assert error.line() == (
        "killed by the kernel: this machine, or the limit of its container, ran out of memory; use fewer --workers"
    )


def test_an_error_crosses_over(tmp_path: Path) -> None:
    write_failure(tmp_path, UserError("bad", where="w", why="y", do="d", code=ExitCode.DATA))
    found = read_failure(tmp_path)
    assert found is not None
    assert (found.line(), found.code) == ("w: bad: y; d", ExitCode.DATA)
    assert read_failure(tmp_path / "none") is None


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (0, None),
        (75, "stopped by a signal"),
        (-9, "killed (SIGKILL), as the system does when memory runs out; use fewer --workers"),
        (137, "killed (SIGKILL)"),
        (-11, "ended by signal SIGSEGV; see"),
        (1, "ended with exit code 1; see"),
    ],
)
def test_how_a_job_ended(code: int, said: str | None, tmp_path: Path) -> None:
    found = explain_end(code, tmp_path, tmp_path / "job.log", JobSet.less_memory)
    text = found.line() if isinstance(found, UserError) else None if found is None else found.reason
    assert text == said if said is None else str(text).startswith(said)


def test_a_worker_stops_when_whoever_started_it_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(child.os, "kill", lambda *what: sent.append(what))
    reading, writing = os.pipe()
    os.write(writing, b"more")
    os.close(writing)
    child._stop_without_parent(reading)
    os.close(reading)
    assert sent == [(os.getpid(), signal.SIGTERM)]


# --- who makes them -----------------------------------------------------------------------------------------------


def test_threads_are_divided() -> None:
    cpus = Cpus(8, 8, None)
    assert [share_cpus(n, cpus) for n in (1, 2, 3, 8, 9)] == [8, 4, 2, 1, 1]
    assert share_cpus(2, Cpus(64, 64, 4.0)) == 2


def executor(*, jobs: int = 4, **options: Any) -> tuple[Any, str]:
    """Who makes so many jobs, and what is said."""
    lines: list[str] = []
    console = Console()
    console.note = lines.append  # type: ignore[method-assign]
    return runner.choose_executor(RunOptions(**options), jobs, console), "\n".join(lines)


def test_one_after_the_other_unless_more_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "read_cpus", lambda: Cpus(4, 4, None))
    assert not executor()[0].elsewhere
    assert not executor(workers=1)[0].elsewhere
    assert not executor(workers=3, jobs=1)[0].elsewhere
    found, said = executor(workers=2)
    assert (found.workers, found.threads) == (2, 2)
    assert "2 workers, 2 CPU threads each" in said
    assert "compete" not in said
    assert executor(workers="auto")[0].workers == 4
    assert executor(workers=8, jobs=3)[0].workers == 3
    found, said = executor(workers=4, threads=3)
    assert found.threads == 3
    assert "12 threads compete for 4 CPUs" in said
    assert "8 threads compete for 4 CPUs" in executor(workers=8, jobs=9)[1]


class Scripted:
    """Ends each job as the script says."""

    elsewhere = True

    def __init__(self, ends: dict[str, UserError | Stopped | None]) -> None:
        self.ends, self.made = ends, list[str]()

    def run(self, todo: deque[Job], shared: JobSet, console: Console, stop: StopFlag) -> Iterator[Ended]:
        while todo:
            job = todo.popleft()
            self.made.append(job.name)
            yield Ended(job, self.ends[job.name])


def run_scripted(
    ends: dict[str, UserError | Stopped | None], recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Scripted, UserError, str]:
    """(who ran them, the error of them all, what was said)."""
    scripted, lines = Scripted(ends), list[str]()
    monkeypatch.setattr(runner, "choose_executor", lambda *_: scripted)
    monkeypatch.setattr(runner, "_make_teachers", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["compress", "distill", "--seeds", "3"])
    console = Console()
    console.note = console.warn = lines.append  # type: ignore[method-assign]
    jobs = [make_job(recipe, tmp_path, name) for name in ends]
    for job in jobs:
        job.folder.mkdir()
        job.log.write_text(f"one\n\ntwo of {job.name}\n")
    with pytest.raises(UserError) as failed:
        run_jobs(jobs, share(tmp_path), console)
    return scripted, failed.value, "\n".join(lines)


def test_what_fails_in_one_run_leaves_the_others_alone(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = UserError("the loss is not finite", code=ExitCode.DATA)
    scripted, error, said = run_scripted({"a": None, "b": bad, "c": None}, recipe, tmp_path, monkeypatch)
    assert scripted.made == ["a", "b", "c"]
    assert error.code == ExitCode.DATA
    assert error.line().startswith("1 of 3 runs failed: b: the loss is not finite; continue with: compress distill")
    assert error.line().endswith("--resume")
    assert "b | two of b" in said


def test_an_error_in_the_input_starts_no_more(recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bad = UserError("no such column", where="--data")
    scripted, error, _ = run_scripted({"a": bad, "b": None, "c": None}, recipe, tmp_path, monkeypatch)
    assert scripted.made == ["a"]
    assert error is bad, "the same as of one run"


def test_a_run_that_somebody_else_stopped_has_failed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, error, _ = run_scripted({"a": Stopped("x")}, recipe, tmp_path, monkeypatch)
    assert "a signal stopped it" in error.line()


def test_a_folder_that_is_taken_is_found_before_anything_starts(recipe: Recipe, tmp_path: Path) -> None:
    job = make_job(recipe, tmp_path)
    job.folder.mkdir()
    (job.folder / "mine.txt").write_text("x")
    with pytest.raises(UserError, match="contains no run of compress"):
        run_jobs([make_job(recipe, tmp_path, "first"), job], share(tmp_path, workers=2), Console(quiet=True))


def test_workers_are_asked_to_stop_and_no_other_starts(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import signal, sys, time\nsignal.signal(signal.SIGINT, lambda *_: sys.exit(75))\n"
        "print('ready', flush=True)\ntime.sleep(60)"
    )

    def begin(packed: Any, log: Path, **_: Any) -> Any:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            return subprocess.Popen([sys.executable, "-c", script], stdout=out, start_new_session=True)

    monkeypatch.setattr(processes, "start", begin)
    jobs = [make_job(recipe, tmp_path, f"seed-{n}") for n in range(3)]

    class Flag:
        """Up once both have started."""

        @property
        def requested(self) -> str | None:
            return "SIGINT" if all("ready" in read_tail(job.log, 1) for job in jobs[:2]) else None

    todo = deque(jobs)
    ended = list(LocalWorkers(2, 1).run(todo, share(tmp_path), Console(quiet=True), Flag()))  # type: ignore[arg-type]
    assert sorted(one.job.name for one in ended) == ["seed-0", "seed-1"]
    assert all(isinstance(one.error, Stopped) for one in ended)
    assert [job.name for job in todo] == ["seed-2"]


def test_a_worker_obeys_where_its_command_ignores_ctrl_c(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As commands do that a script starts in the background: a SIGTERM to them stops their workers all the same."""
    asks = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    monkeypatch.setattr(child, "_SCRIPT", child._SCRIPT.rpartition("; from")[0] + f"; {asks}")
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        processes.close(start({}, tmp_path / "job.log", threads=1))
    finally:
        signal.signal(signal.SIGINT, before)
    assert read_tail(tmp_path / "job.log", 1) == ["True"]


@pytest.mark.thorough
def test_a_worker_that_cannot_begin_leaves_its_error(recipe: Recipe, tmp_path: Path) -> None:
    """The real process: a recipe that names no data is refused there, in one line, and the log holds it."""
    job = make_job(recipe, tmp_path)
    packed = pack(job, share(tmp_path))
    packed["job"]["recipe"] = {"name": "x", "stages": []}
    process = start(packed, job.log, threads=1)
    processes.close(process)
    found = explain_end(process.returncode, job.folder, job.log, JobSet.less_memory)
    assert isinstance(found, UserError)
    assert found.code == ExitCode.INPUT
    assert "stages" in found.line()
    assert read_tail(job.log, 1) == [f"error: {found.line()}"]


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "job.log"
    assert read_tail(log, 3) == []
    log.write_bytes(b"x" * 10_000 + b"\na\n\nb \xff\nc")
    assert read_tail(log, 2) == ["b �", "c"]
    assert processes.last_line(log) == "c"


def test_runs_of_other_data_are_not_put_together(recipe: Recipe, tmp_path: Path) -> None:
    jobs = [make_job(recipe, tmp_path, f"seed-{n}") for n in range(3)]
    for job, data in zip(jobs, ("a", "a", "b"), strict=True):
        job.folder.mkdir()
        (job.folder / "compress-run.json").write_text(f'{{"read": {{"data": "{data}", "teacher": "t"}}}}')
    runner._require_same_input(jobs[:2])
    with pytest.raises(UserError, match="seed-0 and seed-2 read different data") as found:
        runner._require_same_input(jobs)
    assert found.value.code == ExitCode.REFUSED
