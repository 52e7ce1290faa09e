"""`--trials`: settings of the recovery training, searched for by optuna (extra `search`) in a study that several
processes and machines may share.

A trial trains the study's plan anew, in rungs; after each it is evaluated as every plan is, and given up where it is
worse than the median of the others there. How far the answers are from the parent's is what is minimised.
"""

from __future__ import annotations

import hashlib
import json
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from compress.errors import ExitCode, UserError, printable
from compress.fit.make.evaluator import Evaluation
from compress.fit.plan.plans import Plan
from compress.fit.request.case import Case
from compress.fit.train.recovery import RecoveryTraining
from compress.fit.train.settings import Settings, list_searched, outputs_of
from compress.fit.train.trainer import OutOfTime, TrainingJob
from compress.modelfolder import folder as modelfolder
from compress.run.jobs import count_places
from compress.tracking.names import redact

if TYPE_CHECKING:
    import optuna

T = TypeVar("T")

RUNGS = (0.25, 0.25, 0.5)
"""Shares of a trial's steps after which it is judged; each goes on where the one before it stood."""
STARTED = 4
"""Finished trials before one is given up, and before the sampler learns from them."""
JOURNAL, JOURNAL_FILE = "journal:///", "study.journal"
PLAN, WHERE, REASON = "plan", "where", "failed"
OPENED, PAUSE = 5, 0.5
"""Times that a storage is opened, and seconds between them: two processes that make its tables at once are in each
other's way."""


def require() -> None:
    """Raises UserError where optuna is not installed."""
    try:
        import optuna  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{error.name or 'optuna'} is not installed", where="--trials", do="pip install 'compress-bert[search]'",
            code=ExitCode.ENVIRONMENT,
        ) from None  # fmt: skip


def require_storage(url: str) -> None:
    """Raises UserError for a storage that does not open. One that is not there is made, as `open_study` would."""
    from optuna.storages import get_storage

    _retried(url, lambda storage: get_storage(storage).get_all_studies())


def open_study(name: str, url: str) -> optuna.Study:
    """The study of that name, made where it is not there. url: of any storage that optuna opens (sqlite:///FILE,
    postgresql://…, mysql://…, redis://…), or journal:///FILE. Raises UserError for one that does not open."""
    import optuna

    return _retried(
        url,
        lambda storage: optuna.create_study(
            study_name=name,
            storage=storage,
            load_if_exists=True,
            direction="minimize",
            sampler=optuna.samplers.TPESampler(n_startup_trials=STARTED, constant_liar=True),
            pruner=optuna.pruners.MedianPruner(n_startup_trials=STARTED),
        ),
    )


def _retried(url: str, use: Callable[[Any], T]) -> T:
    """What is done with a storage; tried again, since a database that two processes make at once fails in one."""
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    error: Exception | None = None
    for attempt in range(OPENED):
        if attempt:
            time.sleep(PAUSE)
        try:
            storage: Any = url
            if url.startswith(JOURNAL):
                storage = JournalStorage(JournalFileBackend(url.removeprefix(JOURNAL)))
            return use(storage)
        except Exception as problem:  # of sqlalchemy, of a database's driver, of the file system: each has its own
            error = problem
    raise UserError(
        "the storage of the study cannot be opened", where=f"--study {printable(redact(url), 100)}",
        why=printable(redact(str(error)).partition("\n")[0], 200),
        do="give an address such as sqlite:///study.db or journal:///study.journal",
        code=ExitCode.ENVIRONMENT,
    )  # fmt: skip


@dataclass(eq=False)
class _Begun:
    """A trial that is being trained. work: its folder.  start: the model that its next round trains.  before: steps
    that this model had behind it."""

    trial: optuna.Trial
    plan: Plan
    settings: Settings
    steps: int
    work: Path
    start: Path
    before: int = 0

    def build_job(self, rung: int) -> TrainingJob:
        """Its next round."""
        part = max(1, round(RUNGS[rung] * self.steps))
        name = f"trial {self.trial.number}, {self.before + part} steps"
        return TrainingJob(self.plan, self.work / f"rung-{rung}", self.start, name, part, self.before, self.settings)


class Trials:
    """A study, as one process of it sees it. count: trials of the whole study.  url: None: a journal in the fit's own
    folder.  steps: of a trial, at most."""

    def __init__(
        self, case: Case, folder: Path, healing: RecoveryTraining, count: int, url: str | None, steps: int
    ) -> None:
        self.case, self.healing, self.count, self.steps = case, healing, count, steps
        self.url = url or JOURNAL + str(folder / JOURNAL_FILE)
        self.where = f"{socket.gethostname()}:{folder.resolve()}"

    @property
    def name(self) -> str:
        """The same on every machine that fits this model on this data to these bounds."""
        case = self.case
        told = [modelfolder.fingerprint(case.source), case.table.fingerprint, case.bounds.as_json()]
        told += [case.max_length, self.steps]
        return f"compress-fit-{hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:12]}"

    def run(self, tried: list[Evaluation]) -> None:
        """Trials until the study has enough of them; each judged model is added to those `tried`.

        Raises Stopped where a signal asked for it: the trial is marked as failed then, and waits to be run again. With
        workers, several are trained at once, and the next ones are chosen when all of them have ended.
        """
        study = open_study(self.name, self.url)
        plan = self._plan(study, tried)
        if plan is None:
            return
        self._recover(study)
        first = {key: value for key, value in Settings().as_json().items() if key in list_searched(self.case.task)}
        study.enqueue_trial({**first, "steps": self.steps}, skip_if_exists=True)
        while (left := self.count - self.count_finished(study)) > 0:
            begun: list[_Begun] = []
            try:
                self._begin(study, plan, min(left, count_places(self.case.options)), begun)
                for rung in range(len(RUNGS)):
                    self._climb(study, begun, rung, tried)
            except OutOfTime:
                self._all_again(study, begun)
                self.case.console.note(f"no time left for more trials (limit {self.case.wanted.seconds:.0f} s)")
                break
            except BaseException:
                self._all_again(study, begun)
                raise
        self._tell(study)

    def _begin(self, study: optuna.Study, plan: Plan, count: int, begun: list[_Begun]) -> None:
        """Add to `begun` at most so many trials that are trained at once; one that repeats another is marked as
        failed."""
        import optuna

        start = self.healing.start(plan)  # first: what fails to be written leaves no trial behind
        for _ in range(count):
            trial = study.ask()
            trial.set_user_attr(WHERE, self.where)
            if self._repeats(study, trial.number):
                study.tell(trial, state=optuna.trial.TrialState.FAIL, skip_if_finished=True)
                continue
            if study.trials[trial.number].user_attrs.get(WHERE) != self.where:
                continue  # a database may hand one queued trial to two processes that ask at once: the last keeps it
            settings, steps = self._asked(trial)
            said = json.dumps([settings.as_json(), steps], sort_keys=True)
            # By its settings: one that is run again goes on where it was stopped.
            work = self.healing.work(plan).with_name("trials") / hashlib.sha256(said.encode()).hexdigest()[:12]
            begun.append(_Begun(trial, plan, settings, steps, work, start))

    def _climb(self, study: optuna.Study, begun: list[_Begun], rung: int, tried: list[Evaluation]) -> None:
        """Train and judge a round of each; those that end are told to the study, and removed."""
        import optuna

        ends = optuna.trial.TrialState
        jobs = [one.build_job(rung) for one in begun]
        self.healing.trainer.train_together(jobs)
        for one, job in zip(list(begun), jobs, strict=True):
            trial, described = one.trial, self._describe(one.settings, one.steps)
            said = f"trial {trial.number} of {self.count}, round {rung + 1} of {len(RUNGS)}: {described}"
            made = self.healing.trainer.attempt(job, self.healing.write, said, 0.0)
            if made is None:
                trial.set_user_attr(REASON, "its training failed")
                study.tell(trial, state=ends.FAIL)
                begun.remove(one)
                continue
            tried.append(made)
            trial.report(made.apart, rung)
            one.start, one.before = job.trained, job.before + job.steps
            if rung + 1 == len(RUNGS):
                trial.set_user_attr("folder", str(made.folder))
                study.tell(trial, made.apart)
                begun.remove(one)
            elif trial.should_prune():
                self.case.console.note(
                    f"trial {trial.number} is stopped early: other trials were closer to the parent at this point"
                )
                study.tell(trial, state=ends.PRUNED)
                begun.remove(one)

    def _all_again(self, study: optuna.Study, begun: Sequence[_Begun]) -> None:
        for one in begun:
            self._again(study, one.trial.number)

    @staticmethod
    def count_finished(study: optuna.Study) -> int:
        """Trials that came to an end: finished, given up, or failed by themselves."""
        return sum(t.state.name in ("COMPLETE", "PRUNED") or REASON in t.user_attrs for t in study.trials)

    def _plan(self, study: optuna.Study, tried: list[Evaluation]) -> Plan | None:
        """The plan that whoever began the study chose: of those that may be trained the one that healed best."""
        if PLAN not in study.user_attrs:
            able = {j.plan.key for j in self.healing.able(tried)}
            field = [j for j in tried if j.plan.key in able]
            if not field:
                return None
            most = max(j.steps for j in field)
            best = min((j for j in field if j.steps == most), key=lambda j: j.apart)
            study.set_user_attr(PLAN, best.plan.as_json())
        return Plan.from_json(study.user_attrs[PLAN])

    def _recover(self, study: optuna.Study) -> None:
        """Trials that this fit had begun when it was killed are run again."""
        for trial in study.trials:
            if trial.state.name == "RUNNING" and trial.user_attrs.get(WHERE) == self.where:
                self._again(study, trial.number)

    @staticmethod
    def _repeats(study: optuna.Study, number: int) -> bool:
        """Whether an earlier trial was queued with the same settings: two processes that begin a study at once both
        queue its first trial, since no storage asks and adds in one step."""
        queued = [trial.system_attrs.get("fixed_params") for trial in study.trials[: number + 1]]
        live = [trial.state.name != "FAIL" for trial in study.trials[:number]]
        return queued[-1] is not None and any(q == queued[-1] for q, on in zip(queued, live, strict=False) if on)

    def _again(self, study: optuna.Study, number: int) -> None:
        import optuna

        study.tell(number, state=optuna.trial.TrialState.FAIL)
        study.enqueue_trial(study.trials[number].params)

    def _asked(self, trial: optuna.Trial) -> tuple[Settings, int]:
        searched = list_searched(self.case.task).items()
        given = {name: trial.suggest_float(name, part.low, part.high, log=part.log) for name, part in searched}
        steps = trial.suggest_categorical("steps", list(dict.fromkeys([max(1, self.steps // 2), self.steps])))
        return Settings(**given), int(steps)

    def _tell(self, study: optuna.Study) -> None:
        finished = [t for t in study.trials if t.state.name == "COMPLETE" and t.value is not None]
        if not finished:
            return
        best = min(finished, key=lambda t: t.value or 0.0)
        settings = ", ".join(f"{key} {value:.3g}" for key, value in best.params.items())
        elsewhere = best.user_attrs.get(WHERE) != self.where
        there = f"; its folder is {best.user_attrs.get(WHERE)}, {best.user_attrs.get('folder')}" if elsewhere else ""
        self.case.console.note(
            f"study {study.study_name}: {self.count_finished(study)} trials; the best is {best.number}: "
            f"{settings}{there}"
        )

    def _describe(self, settings: Settings, steps: int) -> str:
        told = settings.as_json(outputs_of(self.case.task))
        return ", ".join([f"{steps} steps", *(f"{key} {value:.3g}" for key, value in told.items())])
