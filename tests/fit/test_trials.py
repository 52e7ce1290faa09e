"""Trials of one study by several processes: what is asked, what is given up, and what is run again."""

from __future__ import annotations

import dataclasses
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import optuna
import pytest

from compress.contracts import RunOptions
from compress.data.tasks import task_of
from compress.errors import Stopped, UserError
from compress.fit.make.evaluator import Evaluation, Timing
from compress.fit.plan.plans import Plan
from compress.fit.request.bounds import Bounds
from compress.fit.request.case import Case
from compress.fit.request.options import FitOptions
from compress.fit.run import Fit
from compress.fit.train import trials as trials_of_a_fit
from compress.fit.train.trainer import OutOfTime, TrainingJob
from compress.fit.train.trials import STARTED, WHERE, Trials, open_study, require
from evaluation.cost.latency import Latency


def judged(job: TrainingJob, apart: float) -> Evaluation:
    latency = Latency(4.0, 4.1, 4.2, 3.9, 50, 1.0, 0.02)
    steps, timing = job.before + job.steps, Timing.of(latency, latency)
    return Evaluation(job.name, job.plan, job.folder, 5.0, timing, 0.9, 0, -1, 1, apart, 1.0, steps)


PLAN = Plan((0,), (1,), (1,), (8,), (8,), "whole", 10, 8, 0, 4.0, 5.0, 0.0)
HEALED = dataclasses.replace(judged(TrainingJob(PLAN, Path("a"), Path("a"), "plan 1", 0), 0.3), steps=0)


class Bench:
    """What trials read of a fit, a healing and a trainer: plans come nearer to the parent the nearer the rate is to
    3e-4. raises: trial's place in this process → what its second rung ends with; None: it fails.  worsening: each trial
    is worse than the one before instead."""

    def __init__(
        self, folder: Path, raises: dict[int, BaseException | None] | None = None, worsening: bool = False
    ) -> None:
        self.worsening = worsening
        self.together: threading.Barrier | None = None
        self.said: list[str] = []
        self.jobs: list[TrainingJob] = []
        self.raises, self.begun = raises or {}, 0
        console = SimpleNamespace(note=self.said.append, warn=self.said.append)
        table = SimpleNamespace(fingerprint="data", task="classification")
        self.fit = SimpleNamespace(
            path=folder, source=folder, table=table, task=task_of("classification"),
            bounds=Bounds(max_mb=9), max_length=24, console=console,
            wanted=SimpleNamespace(seconds=60.0), options=RunOptions(),
        )  # fmt: skip
        self.groups: list[list[TrainingJob]] = []
        self.healing = SimpleNamespace(
            trainer=self, write=None, start=lambda plan: folder / "start", able=lambda tried: tried,
            work=lambda plan: folder / plan.key / "healing",
        )  # fmt: skip
        self.tried: list[Evaluation] = [HEALED]

    def train_together(self, jobs: list[TrainingJob]) -> None:
        self.groups.append(list(jobs))

    def attempt(self, job: TrainingJob, *_: Any) -> Evaluation | None:
        if self.together is not None and not self.jobs:
            self.together.wait(120)  # nobody is done before all have begun
        self.jobs.append(job)
        self.begun += not job.before
        if job.before and self.begun in self.raises:
            error = self.raises[self.begun]
            if error is None:
                return None
            raise error
        if self.worsening:
            return judged(job, float(self.begun))
        return judged(job, abs(job.settings.rate - 3e-4) * 1000 + 1 / (job.before + job.steps))

    def run(self, count: int, url: str | None = None) -> Trials:
        one = Trials(self.fit, self.fit.path, self.healing, count, url, 40)  # pyright: ignore[reportArgumentType]
        one.run(self.tried)
        return one


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_of_a_fit.modelfolder, "fingerprint", lambda folder: "model")


def states(one: Trials) -> list[str]:
    return [t.state.name for t in open_study(one.name, one.url).trials]


def test_two_that_share_a_study_stop_at_its_count(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    benches = [Bench(tmp_path / name) for name in ("one", "two")]
    gate = threading.Barrier(2)
    for bench in benches:
        bench.together = gate
    threads = [threading.Thread(target=bench.run, args=(6, url)) for bench in benches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    study = open_study(Trials(benches[0].fit, benches[0].fit.path, benches[0].healing, 1, url, 40).name, url)  # pyright: ignore[reportArgumentType]
    assert 6 <= Trials.count_finished(study) <= 7, "the other one may have begun one more"
    assert all(len(bench.tried) > 1 for bench in benches), "both worked on it"
    rates = [t.params["rate"] for t in study.trials if t.state.name != "FAIL"]
    assert len(set(rates)) == len(rates), "nobody did another's again"
    assert Plan.from_json(study.user_attrs["plan"]) == PLAN
    first = study.trials[0].params
    assert (first["rate"], first["temperature"], first["steps"]) == (1e-4, 2.0, 40), "as without trials"
    late = Bench(tmp_path / "three")
    late.run(6, url)
    assert not late.jobs
    assert "its folder is" in late.said[-1], "where the best one is, if it was made in another place"


def test_a_first_trial_that_two_processes_queued_at_once_is_run_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    queue = optuna.Study.enqueue_trial
    with pytest.MonkeyPatch.context() as patch:
        # Neither saw the other's: both queued theirs.
        patch.setattr(optuna.Study, "enqueue_trial", lambda one, params, **_: [queue(one, params) for _ in range(2)])
        one = bench.run(2)
    assert states(one) == ["COMPLETE", "FAIL", "COMPLETE"], "the copy does not count as one of the two"
    assert [job.settings.rate == 1e-4 for job in bench.jobs] == [True] * 3 + [False] * 3


def test_a_queued_trial_that_two_processes_are_given_at_once_is_run_by_one(tmp_path: Path) -> None:
    bench, told = Bench(tmp_path), optuna.Trial.set_user_attr

    def and_then_the_other(one: optuna.Trial, key: str, value: Any) -> None:
        told(one, key, value)
        if key == WHERE and one.number == 0:
            told(one, key, "another process")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optuna.Trial, "set_user_attr", and_then_the_other)
        one = bench.run(2)
    assert states(one) == ["RUNNING", "COMPLETE", "COMPLETE"]


def test_each_rung_goes_on_where_the_last_one_stood_and_the_worse_are_given_up(tmp_path: Path) -> None:
    bench = Bench(tmp_path, worsening=True)
    one = bench.run(7)
    assert [(x.steps, x.before) for x in bench.jobs[:3]] == [(10, 0), (10, 10), (20, 20)]
    assert bench.jobs[0].start == tmp_path / "start"
    assert bench.jobs[1].start == bench.jobs[0].trained
    assert states(one) == ["COMPLETE"] * STARTED + ["PRUNED"] * (7 - STARTED)
    assert len(bench.tried) == 1 + len(bench.jobs)
    assert (tmp_path / "study.journal").is_file(), "a study of nobody else lies in the fit's folder"


def test_with_workers_several_trials_are_trained_at_once(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {4: Stopped("stopped by SIGINT")})
    bench.fit.options = RunOptions(workers=2)
    with pytest.raises(Stopped):
        bench.run(4)
    assert [len(group) for group in bench.groups] == [2, 2, 2, 2, 2]
    one = Trials(bench.fit, tmp_path, bench.healing, 4, None, 40)  # pyright: ignore[reportArgumentType]
    assert states(one)[:4] == ["COMPLETE", "COMPLETE", "FAIL", "FAIL"], "both of those that were begun are run again"
    assert states(one)[4:] == ["WAITING", "WAITING"]
    again = Bench(tmp_path)
    again.run(4)
    assert [job.folder.parent for job in again.jobs[:1]] == [bench.groups[3][0].folder.parent]
    assert Trials.count_finished(open_study(one.name, one.url)) == 4


def test_a_start_that_cannot_be_written_leaves_no_trial_behind(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.healing.start = lambda plan: (tmp_path / "start" / "model").mkdir()
    with pytest.raises(FileNotFoundError):
        bench.run(3)
    one = Trials(bench.fit, tmp_path, bench.healing, 3, None, 40)  # pyright: ignore[reportArgumentType]
    assert states(one) == ["WAITING"]


@pytest.mark.parametrize("error", [Stopped("stopped by SIGINT"), OutOfTime()])
def test_a_trial_that_was_stopped_is_marked_as_failed_and_run_again(tmp_path: Path, error: Exception) -> None:
    first = Bench(tmp_path, {2: error})
    if isinstance(error, Stopped):
        with pytest.raises(Stopped):
            first.run(3)
    else:
        first.run(3)
        assert first.said[-2] == "no time left for more trials (limit 60 s)"
    again = Bench(tmp_path)
    one = again.run(3)
    assert states(one) == ["COMPLETE", "FAIL", "COMPLETE", "COMPLETE"]
    assert again.jobs[0].folder == first.jobs[3].folder, "where its checkpoints are"
    assert again.jobs[0].settings == first.jobs[3].settings


def test_a_trial_of_a_killed_fit_is_run_again(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {1: KeyboardInterrupt()})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trials, "_again", lambda *_: None)  # as where the process is not there any more
        with pytest.raises(KeyboardInterrupt):
            bench.run(1)
    one = Bench(tmp_path).run(1)
    assert states(one) == ["FAIL", "COMPLETE"]


def test_trainings_that_fail_count(tmp_path: Path) -> None:
    bench = Bench(tmp_path, {1: None, 2: None})
    one = bench.run(2)
    assert states(one) == ["FAIL", "FAIL"]
    assert bench.tried[0] is HEALED


def test_scores_have_no_temperature(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.fit.task = task_of("regression")
    one = bench.run(2)
    assert all("temperature" not in t.params for t in open_study(one.name, one.url).trials)


def test_what_cannot_be_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trials_of_a_fit, "PAUSE", 0.0)
    with pytest.raises(UserError) as error:
        open_study("a", "postgres//me:secret@there")
    assert error.value.line().startswith("--study postgres//")
    assert "give an address such as sqlite:///study.db or journal:///study.journal" in error.value.line()
    with pytest.raises(UserError) as error:
        FitOptions("model", Bounds(max_mb=1), trials=3).check()
    assert error.value.line() == "--trials: needs training; add --train recover or --train full"
    with pytest.raises(UserError) as error:
        FitOptions("model", Bounds(max_mb=1), study="sqlite:///a.db").check()
    assert error.value.line() == "--study: only applies with --trials; add --trials N, or remove --study"
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError) as error:
        require()
    assert error.value.line() == "--trials: optuna is not installed; pip install 'compress-bert[search]'"


@pytest.mark.parametrize(
    "url", ["sqlite:///{}", "sqlite:///{}/no/study.db", "sqlite:///{}/text", "journal:///{}", "{}"]
)
def test_a_study_that_does_not_open_is_rejected_before_anything_is_read(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder, a missing folder, a file that is no database, and what is no address."""
    monkeypatch.setattr(trials_of_a_fit, "PAUSE", 0.0)
    monkeypatch.setattr(Case, "of", lambda *_: pytest.fail("the model was read"))
    (tmp_path / "text").write_text("no database")
    wanted = FitOptions("model", Bounds(max_mb=1), train="recover", trials=3, study=url.format(tmp_path))
    with pytest.raises(UserError, match=r"--study .*: the storage of the study cannot be opened: ") as error:
        Fit(wanted, RunOptions(), None, None)  # pyright: ignore[reportArgumentType]
    assert "\n" not in error.value.line()
    assert [path.name for path in tmp_path.iterdir()] == ["text"]


def test_a_run_may_go_on_with_more_trials_and_another_study() -> None:
    one = FitOptions("model", Bounds(max_mb=1), train="recover", trials=3)
    assert one.digest() == dataclasses.replace(one, trials=9, study="sqlite:///a.db").digest()
    assert optuna.__version__
