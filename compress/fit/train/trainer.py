"""A plan's model trained by a run of its own, a child of the fit's: the pipeline's distill stage does it, and what it
left is written, timed and scored as every plan is."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import Override, RunOptions
from compress.encoder.modules.model import Model
from compress.errors import Stopped, UserError
from compress.fit import report
from compress.fit.journal import Journal
from compress.fit.make.evaluator import RECORD, Evaluation, Evaluator, read_evaluation
from compress.fit.plan.plans import Plan
from compress.fit.request.case import Case
from compress.fit.train.settings import RECIPES, Settings, outputs_of
from compress.modelfolder import folder as modelfolder
from compress.recipe import Recipe, load_recipe
from compress.run import Run
from compress.run.folder import is_finished
from compress.run.jobs import Job, JobSet, choose_executor, count_places, do_jobs
from compress.storage import atomic

FITTED = "fitted"


@dataclass(frozen=True)
class TrainingJob:
    """One training. folder: of its run.  start: the model that is trained.  name: of what is judged.  steps: of this
    run.  before: steps that `start` had behind it.  more: further values of the recipe."""

    plan: Plan
    folder: Path
    start: Path
    name: str
    steps: int
    before: int = 0
    settings: Settings = dataclasses.field(default_factory=Settings)
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def trained(self) -> Path:
        """The folder that the run leaves."""
        return self.folder / "student"


Writer = Callable[[TrainingJob, Model], None]
"""Gets a trained model and writes the folder that is evaluated, FITTED in that of the job."""


class OutOfTime(Exception):  # noqa: N818 - not an error: the time that was given is over
    """There is no time for a training, or its time ended in it; what was trained of it is kept for --resume."""


class Trainer:
    """Trains plans inside a fit. seconds_a_step: the most that a step took so far; None before the first."""

    def __init__(self, case: Case, evaluator: Evaluator, journal: Journal) -> None:
        self.case, self.evaluator, self.journal = case, evaluator, journal
        self.seconds_a_step: float | None = None

    def train(self, job: TrainingJob, write: Writer, said: str, making: float) -> Evaluation:
        """Train, write, evaluate; what was evaluated before is not made again.

        said: where this training stands among the others.  making: seconds that writing and judging a plan take.
        Raises OutOfTime, Stopped where a signal asked for it, and UserError where the run failed.
        """
        case, told = self.case, job.folder / RECORD
        fitted = job.folder / FITTED
        if told.is_file() and not atomic.verify_folder(fitted) and not atomic.verify_folder(job.trained):
            made = read_evaluation(told, fitted)
            self.evaluator.remember(made.timing)
            case.console.note(f"{made.name}: already evaluated")
            return made
        if case.clock.late(making + job.steps * (self.seconds_a_step or 0.0)):
            raise OutOfTime
        begun = time.monotonic()
        case.console.note(said)
        self._run(job)
        model = modelfolder.load_model(job.trained, device=case.options.device).model.eval()
        write(job, model)
        made = self.evaluator.evaluate(job.name, job.plan, fitted, begun, job.before + job.steps)
        made.write(told)
        read = job.settings.as_json(outputs_of(case.task))
        settings = {f"training.{key}": value for key, value in read.items()}
        self.journal.record(job.folder, made, **settings)
        case.console.note(f"{made.name}: {report.figures_of(case.metric, made)}")
        return made

    def train_together(self, jobs: Sequence[TrainingJob]) -> None:
        """Have the runs of several trainings made at once, where workers were requested: `train` finds them done.

        One that fails here is tried once more by `train`, alone. Raises Stopped where a signal asked for it.
        """
        case = self.case
        if case.options.on is None and count_places(case.options) < 2:
            return
        clock = case.clock
        todo = [job for job in jobs if not (job.folder / RECORD).is_file() and not self._is_trained(job)]
        steps = max((job.steps for job in todo), default=0)
        if len(todo) < 2 or clock.late(steps * (self.seconds_a_step or 0.0)):
            return
        begun, tags = time.monotonic(), self.journal.tags()
        runs = [Job(job.name, self._load_recipe(job), job.folder, job.name, tags) for job in todo]
        shared = JobSet(
            self.journal.path, self._options, None, {}, self.journal.log.parent, resume=True, measures=False
        )
        with clock.stop.until(clock.deadline):
            executor = choose_executor(case.options, len(runs), case.console, timed=False)
            do_jobs(runs, executor, shared, case.console, clock.stop)
        clock.check()
        self.seconds_a_step = max(self.seconds_a_step or 0.0, (time.monotonic() - begun) / steps)

    @property
    def _options(self) -> RunOptions:
        """Of each run: what it leaves is deployed and judged by the fit."""
        return dataclasses.replace(
            self.case.options, overrides=(), runtime=None, onnx=False, json=False, workers=None, on=None
        )

    @staticmethod
    def _is_trained(job: TrainingJob) -> bool:
        return is_finished(job.folder) and job.trained.is_dir() and not atomic.verify_folder(job.trained)

    def _load_recipe(self, job: TrainingJob) -> Recipe:
        case = self.case
        assert case.recipe.data is not None
        outputs = outputs_of(case.task)
        said = {
            "seed": case.recipe.seed,
            "data": {**case.recipe.data.model_dump(mode="json"), "max_length": case.max_length},
            "stages.0.student": {"model": str(job.start)},
            "stages.0.control": False,
            "stages.0.checks": "off",
            "stages.0.augmentation": None,
            "stages.0.training.steps": job.steps,
            "stages.0.training.epochs": None,
            "teacher": str(case.source),
            **job.settings.overrides(outputs),
            **job.more,
        }
        overrides = tuple(Override(key, value, "--train") for key, value in said.items())
        return load_recipe(RECIPES[outputs], overrides=overrides)

    def _run(self, job: TrainingJob) -> None:
        """The training itself, up to the end of the fit's time; one that was stopped goes on at its last step."""
        case, begun = self.case, time.monotonic()
        if self._is_trained(job):
            return
        options = dataclasses.replace(self._options, output=job.folder, resume=job.folder.exists())
        # Its tables and lines are not what the fit was run for: stdout is the fit's own.
        console = Console(quiet=case.console.quiet, json=True)
        run = Run(
            self._load_recipe(job), options, console, None, {}, parent=self.journal.log.parent,
            tags=self.journal.tags(), name=self.journal.name_run(job.name), measures=False,
        )  # fmt: skip
        try:
            with case.clock.stop.until(case.clock.deadline):
                run.go()
        except Stopped:
            if case.clock.stop.requested is None:
                raise OutOfTime from None
            raise
        took = (time.monotonic() - begun) / job.steps
        self.seconds_a_step = max(self.seconds_a_step or 0.0, took)

    def attempt(self, job: TrainingJob, write: Writer, said: str, making: float) -> Evaluation | None:
        """As `train`; None, and a warning, where the run failed: what was found before must not be lost by it."""
        try:
            return self.train(job, write, said, making)
        except UserError as error:
            self.case.console.warn(f"{job.name} failed and is skipped: {error.line()}")
            return None
