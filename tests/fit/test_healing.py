"""Which plans are trained, for how long, from where, and what becomes of trainings that fail or find no time."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tasks import task_of
from compress.errors import Stopped, UserError
from compress.fit.make.evaluator import Evaluation, Timing
from compress.fit.plan.plans import Plan
from compress.fit.request.bounds import Bounds
from compress.fit.request.clock import Clock
from compress.fit.train import trainer as training
from compress.fit.train.recovery import RecoveryTraining
from compress.fit.train.settings import Settings, list_searched
from compress.fit.train.trainer import OutOfTime, Trainer, TrainingJob
from compress.recipe import Recipe, load_recipe
from compress.storage.signals import StopFlag
from evaluation.cost.latency import Latency


def judged(name: str, apart: float, *, heads: int = 1, mb: float = 5.0) -> Evaluation:
    latency = Latency(4.0, 4.1, 4.2, 3.9, 50, 1.0, 0.02)
    plan = Plan((0,), (heads,), (1,), (8,), (8,), "whole", 10, 8, 0, 4.0, mb, 0.0)
    return Evaluation(name, plan, Path(name), mb, Timing.of(latency, latency), 0.9, 0, -1, 1, apart, 1.0)


class Fit(SimpleNamespace):
    """What a healing reads of a fit."""

    def __init__(self, deadline: bool = False) -> None:
        self.said: list[str] = []
        console = SimpleNamespace(note=self.said.append, warn=self.said.append, quiet=True)
        maker = SimpleNamespace(needs_narrowing=lambda plan: plan.heads != (99,))
        super().__init__(console=console, maker=maker, bounds=Bounds(max_mb=10), path=Path("runs/fit"))
        self.wanted = SimpleNamespace(seconds=60.0)


class Taught(Trainer):
    """Trains nothing: halves how far a plan is from its parent. fails: plans whose training fails.  last: trainings
    that there is time for."""

    def __init__(self, fit: Any, fails: str = "", last: int = 99) -> None:
        super().__init__(fit, evaluator=None, journal=None)  # pyright: ignore[reportArgumentType]
        self.jobs: list[TrainingJob] = []
        self.fails, self.left, self.apart = fails, last, {}
        self.groups: list[list[str]] = []

    def train_together(self, jobs: Sequence[TrainingJob]) -> None:
        self.groups.append([job.name for job in jobs])

    def train(self, job: TrainingJob, *rest: Any) -> Evaluation:
        if not self.left:
            raise OutOfTime
        self.left -= 1
        self.jobs.append(job)
        if job.name.partition(",")[0] == self.fails:
            raise UserError("the weights are not finite", where=str(job.folder))
        made = judged(job.name, self.apart[job.plan.key] / 2)
        self.apart[job.plan.key] /= 2
        return dataclasses.replace(made, plan=job.plan, steps=job.before + job.steps)


@pytest.fixture
def tried() -> list[Evaluation]:
    rows = [judged(f"plan {i}", 0.1 * i, heads=i) for i in range(1, 6)]
    return [judged("int8 only", 0.0, heads=99), *rows, judged("large", 0.01, heads=7, mb=11.0)]


def heal(tried: list[Evaluation], monkeypatch: pytest.MonkeyPatch, **how: Any) -> tuple[Taught, Fit]:
    fit = Fit()
    trainer = Taught(fit, **how)
    trainer.apart = {j.plan.key: j.apart for j in tried}
    monkeypatch.setattr(RecoveryTraining, "start", lambda self, plan: Path(plan.key) / "start")
    RecoveryTraining(fit, fit, fit.path, trainer, 400).train(tried)  # pyright: ignore[reportArgumentType]
    return trainer, fit


def test_fewer_plans_for_more_steps_each_from_where_it_stood(
    tried: list[Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {j.name: j.plan.key for j in tried}
    trainer, _ = heal(tried, monkeypatch)
    assert [(job.name, job.steps) for job in trainer.jobs] == [
        ("plan 1, 100 recovery steps", 100),
        ("plan 2, 100 recovery steps", 100),
        ("plan 3, 100 recovery steps", 100),
        ("plan 4, 100 recovery steps", 100),
        ("plan 1, 300 recovery steps", 200),
        ("plan 2, 300 recovery steps", 200),
        ("plan 1, 700 recovery steps", 400),
    ]
    assert [name for group in trainer.groups for name in group] == [job.name for job in trainer.jobs]
    assert [len(group) for group in trainer.groups] == [4, 2, 1], "the plans of a round can be trained at once"
    first, again = trainer.jobs[0], trainer.jobs[4]
    assert first.start == Path(keys["plan 1"]) / "start"
    assert again.start == first.trained
    assert [j.name for j in tried[7:]] == [job.name for job in trainer.jobs]


def test_a_training_that_fails_leaves_its_plan_out_and_loses_nothing(
    tried: list[Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, fit = heal(tried, monkeypatch, fails="plan 1")
    assert [job.name.partition(",")[0] for job in trainer.jobs][4:] == ["plan 2", "plan 3", "plan 2"]
    assert fit.said == [
        f"plan 1, 100 recovery steps failed and is skipped: {trainer.jobs[0].folder}: the weights are not finite"
    ]
    assert tried[1].name == "plan 1"


def test_what_was_trained_before_the_time_ended_is_kept(
    tried: list[Evaluation], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, fit = heal(tried, monkeypatch, last=2)
    assert [j.name for j in tried[7:]] == ["plan 1, 100 recovery steps", "plan 2, 100 recovery steps"]
    assert fit.said == ["no time left for more training (limit 60 s)"]


def test_nothing_is_healed_that_cuts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, fit = heal([judged("int8 only", 0.0, heads=99)], monkeypatch)
    assert fit.said == ["no recovery training: no plan within the budgets removes layers, heads or neurons"]


# --- one training -----------------------------------------------------------------------------------------------


class Below:
    """The run of a training: stops as soon as it is told to."""

    made: list[Below]
    stops = True

    def __init__(self, recipe: Recipe, options: RunOptions, console: Console, *_: object, **how: Any) -> None:
        self.recipe, self.options, self.console, self.measures = recipe, options, console, how["measures"]
        self.name = how["name"]
        Below.made.append(self)

    def go(self) -> None:
        with StopFlag() as stop:
            if self.stops and stop.requested:
                raise Stopped(f"stopped by {stop.requested}")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingJob:
    Below.made = []
    monkeypatch.setattr(training, "Run", Below)
    return TrainingJob(
        judged("plan 1", 0.1).plan, tmp_path / "rung-0", tmp_path / "start", "plan 1, 8 recovery steps", 8
    )


def trainer(stop: StopFlag, deadline: float | None, kind: str = "classification") -> Trainer:
    recipe = load_recipe("distilbert-task")
    clock: Any = Clock(stop, None) if deadline is None else SimpleNamespace(stop=stop, deadline=deadline)
    case: Any = SimpleNamespace(
        recipe=recipe, task=task_of(kind), max_length=24, source=Path("parent"),
        options=RunOptions(json=True), console=Console(), clock=clock,
    )  # fmt: skip
    journal: Any = SimpleNamespace(
        log=SimpleNamespace(parent=None), tags=dict, name_run="fit/{}".format, path=Path("runs/fit")
    )
    unused: Any = None
    return Trainer(case, unused, journal)


def test_a_training_is_stopped_at_the_end_of_the_time_and_by_a_signal(job: TrainingJob) -> None:
    with StopFlag() as stop:
        trainer(stop, None)._run(job)
        with pytest.raises(OutOfTime):
            trainer(stop, time.monotonic())._run(job)
        stop.request("SIGINT")
        with pytest.raises(Stopped, match="SIGINT"):
            trainer(stop, time.monotonic())._run(job)


@pytest.mark.parametrize("options", [RunOptions(workers=2), RunOptions(on="ray")])
def test_workers_make_the_runs_that_are_missing(
    options: RunOptions, job: TrainingJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(training, "choose_executor", lambda options, count, *_, **__: (options, count))
    monkeypatch.setattr(training, "do_jobs", lambda *given: handed.append(given))
    jobs = [
        dataclasses.replace(job, folder=job.folder / name, name=name, settings=Settings(rate=3e-4)) for name in "ab"
    ]
    with StopFlag() as stop:
        one = trainer(stop, None)
        one.train_together(jobs)
        assert not handed, "without workers, one after the other"
        one.case.options = options  # pyright: ignore[reportAttributeAccessIssue]
        one.train_together(jobs[:1])
        assert not handed, "one alone is trained in this process"
        one.train_together(jobs)
        stop.request("SIGINT")
        with pytest.raises(Stopped, match="SIGINT"):
            one.train_together(jobs)
    runs, executor, shared, *_ = handed[0]
    assert executor == (options, 2)
    assert [run.folder for run in runs] == [job.folder for job in jobs]
    assert [f"{shared.base.name}/{run.name}" for run in runs] == ["fit/a", "fit/b"], "as the other models of the fit"
    assert (shared.measures, shared.resume, shared.options.workers, shared.options.on) == (False, True, None, None)
    assert runs[0].recipe.stages[0].training.learning_rate == 3e-4


def test_what_a_training_is_asked(job: TrainingJob) -> None:
    with StopFlag() as stop:
        one = trainer(stop, None)
        one._run(dataclasses.replace(job, settings=Settings(rate=3e-4, labels=0.0)))
    assert one.seconds_a_step is not None
    run = Below.made[0]
    stage = run.recipe.stages[0]
    assert [row.kind for row in stage.objectives] == ["soft_targets", "hidden_mse"], "nothing of weight 0 is computed"
    assert (stage.training.steps, stage.training.epochs, stage.training.learning_rate) == (8, None, 3e-4)
    assert stage.student.model == str(job.start)
    assert run.recipe.data is not None
    assert run.recipe.data.max_length == 24
    assert (run.recipe.teacher, run.options.output, run.options.json) == ("parent", job.folder, False)
    assert run.console.json, "stdout is the fit's own"
    assert run.name == "fit/plan 1, 8 recovery steps", "as the other models of the fit are called"
    assert not run.measures, "what a fit judges itself is not measured twice"


@pytest.mark.parametrize(
    ("kind", "objectives"),
    [("embedding", ["vectors", "vector_similarity", "cosine_hidden"]), ("reranking", ["margin_mse", "listwise_kl"])],
)
def test_vectors_and_rankings_are_learned_as_their_recipes_say(
    job: TrainingJob, kind: str, objectives: list[str]
) -> None:
    with StopFlag() as stop:
        trainer(stop, None, kind)._run(dataclasses.replace(job, settings=Settings(rate=3e-4)))
    stage = Below.made[0].recipe.stages[0]
    assert [row.kind for row in stage.objectives] == objectives
    assert (stage.training.steps, stage.training.learning_rate, stage.control) == (8, 3e-4, False)
    assert stage.student.model == str(job.start)
    assert stage.student.layers is None, "the layers are those of the plan"


def test_what_trials_vary() -> None:
    assert list(list_searched(task_of("classification"))) == ["rate", "temperature", "hidden", "labels"]
    assert list(list_searched(task_of("regression"))) == ["rate", "hidden", "labels"], "scores have no temperature"
    assert list(list_searched(task_of("embedding"))) == list(list_searched(task_of("reranking"))) == ["rate"]
