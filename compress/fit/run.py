"""A fit from its request to its certificate.

    blocks ─ what they cost here → study ─ what they are worth → planner → plans ─ made, written, judged → the best ─
    measured on held-out rows → certificate

A plan that was made and judged is not made again, so a stopped fit goes on where it stopped.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.data.tasks import task_of
from compress.encoder.config.low_rank import refuse_low_rank
from compress.encoder.config.quantization import refuse_quantized
from compress.encoder.config.sparsity import refuse_sparse
from compress.errors import ExitCode, Stopped, UserError
from compress.fit import report as telling
from compress.fit.certificate import document as certificate
from compress.fit.certificate.issue import certify
from compress.fit.cost import cost_model as costs
from compress.fit.cost.serving import answering, rounded
from compress.fit.loss.saved_study import studied
from compress.fit.loss.study import Student, as_json
from compress.fit.make.build import Maker
from compress.fit.make.evaluator import RECORD, Judge, Judged, Timing, best_of, judged_from
from compress.fit.plan.forecast import forecast
from compress.fit.plan.plans import Plan, Space
from compress.fit.plan.search import Search, chosen, front
from compress.fit.request.bounds import below_least
from compress.fit.request.options import Wanted
from compress.fit.request.setup import least_megabytes
from compress.fit.request.unlabelled import answered
from compress.fit.train import trials
from compress.fit.train.in_loop import InTheLoop
from compress.fit.train.recovery import Healing
from compress.fit.train.trainer import Trainer
from compress.measure.labelled import open_labelled
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve
from compress.run.folder import Request, RunFolder, claim, resume_command
from compress.stages.prune_width.costs import Counts
from compress.stages.shared.stage import check_same_labels, data_note, settings_asked, settings_for
from compress.stages.shared.timing import timed_length
from compress.storage import atomic
from compress.storage.lock import run_lock
from compress.storage.signals import StopFlag
from compress.tracking import TrackedRun, experiment, open_asked, open_run, resolve_store

PLANS, STUDY = "plans", "study.json"
NARROW = 0.3
"""Of the milliseconds of heads and neurons, what a second model keeps by which planned ones are corrected."""
HELD = 0.985
"""Of the bound on milliseconds, what a model may take before it is certified, where it is timed once more."""
NEAR = (0.9, 1.03)
"""Of that bound, between which a model's first, short timing does not tell whether it holds."""
RESERVE = 0.2
"""Of the time, what is kept for measuring the result."""


class Fit:
    """One model, fitted to its bounds."""

    def __init__(self, wanted: Wanted, options: RunOptions, console: Console, stop: StopFlag) -> None:
        self.wanted, self.options, self.console, self.stop = wanted, options, console, stop
        self.begun = time.monotonic()
        self.timed: set[str] = set()
        """Plans that were timed as the certificate will."""
        self.bounds = wanted.bounds
        self.bounds.check()
        wanted.check()
        if wanted.trials:
            trials.require()
        if options.precision == "bf16":
            raise UserError("bits are what a plan chooses", where="--precision bf16", do="leave it out")
        self.source = resolve(wanted.model, options.tracking_uri)
        info = modelfolder.inspect(self.source)
        if "task" not in info.heads:
            raise UserError(
                "the model answers no task", where=str(self.source), do="fine-tune it first: compress finetune"
            )
        refuse_quantized(info.config, "fitting it", str(self.source))
        refuse_low_rank(info.config, "fitting it", str(self.source))
        refuse_sparse(info.config, "fitting it", str(self.source))
        self.recipe, self.table = open_labelled(info, options, console, bare=True)
        assert self.recipe.data is not None
        self.max_length = min(self.recipe.data.max_length, info.config.max_positions)
        self.labelled = "label" in self.table.columns
        if not self.labelled:
            how = {"device": options.device, "settings": settings_asked(self.recipe)}
            if wanted.train != "none":
                where = f"--train {wanted.train}"
                raise UserError("the data has no labels to train with", where=where, do="give labelled rows")
            self.table = answered(self.table, self.source, self.max_length, **how)
            console.note("the data has no labels: what is measured is agreement with the answers of the parent")
        self.loaded = modelfolder.load_model(self.source, require={"task"}, keep={"task"}, device=options.device)
        check_same_labels(self.loaded, self.table)
        self.task = task_of(self.table.task, self.table.settings)
        self.metric = self.task.metrics_of(self.table.label_names)[0]
        self.bounds.check_rows(len(self.table.split("test")), self.metric, wanted.uncertified)
        self.length = timed_length([(wanted.model, info.config.max_positions)], wanted.length)

    # --- before anything is made ------------------------------------------------------------------------------

    def plan(self, folder: Path | None = None) -> Search:
        """What there is to choose from, and what it costs. folder: of a run that may have begun.

        Raises UserError (REFUSED) below the least possible.
        """
        w, console = self.wanted, self.console
        shape = {"batch": w.batch, "length": self.length, "device": self.options.device}
        least = least_megabytes(self.loaded, self.options.runtime, shape)
        if self.bounds.max_mb is not None and self.bounds.max_mb < least:
            raise below_least("--max-mb", self.bounds.max_mb, least, "MB")
        self.costs = costs.of(self.loaded, self.options.runtime, shape, folder, console)
        self.serving, blocks = self.costs.serving, self.costs.blocks
        self.judge = Judge(
            self.loaded, self.serving, self.table.split("validation"), task=self.table.task,
            settings=settings_for(self.recipe, self.table), max_length=self.max_length,
        )  # fmt: skip
        self.student = Student(
            self.loaded,
            self.task,
            self.table,
            self.serving,
            self.max_length,
            self.recipe.seed,
            self.check,
            console.note,
        )
        study, scales = studied(self.student, blocks, self.check, console.note, joins=w.saves_bytes)
        self.space = Space(study, blocks, 1.0, scales)
        self.check()
        timing = self.costs.timing or self._time_whole()
        self.judge.remember(timing)
        factor, extra = self.costs.factor, self.costs.extra
        self.space = Space(study, blocks, factor, scales, extra)
        self.maker = Maker(self.student, self.space, self.check)
        self.whole = self.space.whole(self.serving.bits[0])
        how = "measured" if timing.quiet else "on a busy machine"
        console.note(
            f"the whole model in {telling.bits(self.serving.bits[0])}: {timing.ms:.2f} ms {how}; a model takes "
            f"{factor:.3f} of the sum of its blocks and {extra:.2f} ms"
        )
        search = Search(self.space, self.bounds, self.whole, w.plans, w.family)
        least_ms, least_mb = search.problem.least
        for flag, asked, found, unit in (
            ("--max-mb", self.bounds.max_mb, least_mb, "MB"), ("--max-ms", self.bounds.max_ms, least_ms, "ms")
        ):  # fmt: skip
            if asked is not None and asked < found:
                raise below_least(flag, asked, found, unit)
        return search

    def _time_whole(self) -> Timing:
        """Of a real model, the whole one as it is usually rounded. It and one with NARROW of the milliseconds of its
        heads and neurons correct what is planned."""
        whole, narrow = self.space.whole(self.serving.bits[0]), self.space.probe(NARROW)[0]
        maker = Maker(self.student, self.space, self.check)
        model = maker.narrow(narrow.layers, Counts(narrow.heads, narrow.neurons), fitted=False)
        timings = []
        for plan, made in ((whole, self.loaded.model), (narrow, model)):
            self.check()
            call = answering(rounded(made, plan.modules(self.loaded.config), self.serving), self.serving)
            timings.append(self.judge.beside_parent(call, 40, 4.0))
        self.costs.timing = timings[0]
        self.costs.correct((whole.ms, timings[0].ms), (narrow.ms, timings[1].ms))
        return timings[0]

    def check(self) -> None:
        """Raises Stopped where a signal asked for it."""
        if self.stop.requested:
            raise Stopped(f"stopped by {self.stop.requested}")

    def late(self, last: float) -> bool:
        """Whether another plan, which takes as long as the last one, would run over the time."""
        return self.deadline is not None and time.monotonic() + last > self.deadline

    @property
    def deadline(self) -> float | None:
        """By the monotonic clock, when the measuring of the result must begin."""
        return None if self.wanted.seconds is None else self.begun + (1 - RESERVE) * self.wanted.seconds

    # --- the run ----------------------------------------------------------------------------------------------

    def go(self) -> dict[str, Any]:
        """Everything, in a folder of its own; the document that --json prints."""
        if self.wanted.plan_only:
            return forecast(self, self.plan())
        recipe = self.recipe.model_copy(update={"name": "fit"})
        self.folder: RunFolder = claim(Request(recipe, "fit", {"fit": self.wanted.digest()}), self.options)
        self.path = self.folder.path
        read = {"model": modelfolder.fingerprint(self.source), "data": self.table.fingerprint}
        tracked = f"{resolve_store(self.options.tracking_uri).shown} {experiment(self.options)}"
        search = self.plan(self.path)
        with run_lock(self.path):
            self.folder.begin(read)
            self.folder.record("running", read, tracked)
            try:
                with open_asked(
                    self.path, self.options, name=self.path.name, method="fit", warn=self.console.warn,
                    quality=f"quality/{self.metric}",
                ) as log:  # fmt: skip
                    document = self._go(search, log)
            except BaseException as error:
                self.folder.record("stopped" if isinstance(error, Stopped) else "failed", read, tracked)
                raise
            self.folder.record("finished", read, tracked)
        return document

    def _go(self, search: Search, log: TrackedRun) -> dict[str, Any]:
        self.costs.write(self.path)
        atomic.write_json(self.path / STUDY, as_json(self.space.study))
        log.artifact(self.path / STUDY)
        log.params({"method": "fit", "runtime": self.serving.runtime, **self.bounds.as_json()})
        try:
            self._try(search, log)
            if self.wanted.train != "none":
                self._train(search, log)
        except Exception as error:
            self._leave(search)
            if isinstance(error, Stopped):
                raise Stopped(error.reason, resume_command(self.path)) from None
            raise
        columns, rows = telling.plans(self, search.tried)
        log.table(self.path / "plans.json", columns, rows)
        self.console.table("plans, on validation rows", columns, rows)
        best, met = self._held(search)
        model = self.path / "model"
        modelfolder.duplicate(best.folder, model)
        found = certify(self, best, model, log)
        family = front(search.tried)
        document = {
            "folder": str(self.path), "model": str(model), "certificate": found,
            "plans": [j.as_json() for j in search.tried], "family": [j.name for j in family],
        }  # fmt: skip
        if self.wanted.family or not met or found["status"] == certificate.INFEASIBLE:
            telling.family(self, family)
        telling.result(self, model, found, log)
        return document

    def _try(self, search: Search, log: TrackedRun) -> None:
        """Make and judge plans until there is none left or no time; the model in 8 bits first."""
        plan: Plan | None = self.whole
        while plan is not None:
            self.check()
            if search.skip(plan, self.maker.megabytes(plan, self.serving)):
                plan = self._next(search)
                continue
            judged = self._judged(plan, len(search.tried), log)
            search.tried.append(judged)
            best, met = chosen(search.tried, self.bounds, best_of)
            self.console.note(telling.progress(self, judged, best, met))
            if self.late(judged.seconds):
                self.console.note(f"no time for another plan in {self.wanted.seconds:.0f} s")
                return
            plan = self._next(search)

    def _next(self, search: Search) -> Plan | None:
        """The plan to make now; where there is none, perhaps there is when times are known better."""
        plan = search.next()
        return search.next() if plan is None and self._timed_again(search) else plan

    def _timed_again(self, search: Search) -> bool:
        """Time once more, as the certificate will, what was timed on a busy machine and what is near the bound: what is
        trained, and what is left out, hangs on it. Whether one is known better now."""
        better, bound = False, self.bounds.max_ms
        for place, judged in enumerate(search.tried):
            timing = judged.timing
            near = bound is not None and NEAR[0] * bound <= timing.ms <= NEAR[1] * bound
            if bound is None or (timing.quiet and (judged.plan.key in self.timed or not near)):
                continue
            self.check()
            if self.late(certificate.SECONDS):
                break
            timing = certificate.latency(self.judge, judged.folder)
            self.timed.add(judged.plan.key)
            if timing.quiet:
                better = True
                search.tried[place] = found = replace(judged, timing=timing)
                found.write(self.path / PLANS / found.plan.key / RECORD)
                self.console.note(f"{found.name}, timed again: {found.timing.ms:.2f} ms")
        return better

    def _held(self, search: Search) -> tuple[Judged, bool]:
        """The one to leave, of those that are within the milliseconds when they are timed as the certificate will time
        one: of several, the best is often the one whose time came out low. The first, where none is."""
        first = found = chosen(search.tried, self.bounds, best_of)
        left, bound = list(search.tried), self.bounds.max_ms
        while bound is not None and found[1]:
            self.check()
            best = found[0]
            took = certificate.latency(self.judge, best.folder).certain
            if took <= HELD * bound:
                return found
            self.console.note(f"{best.name} took {took:.2f} ms of {bound:g} when it was timed again")
            left = [j for j in left if j.plan.key != best.plan.key]
            if not left:
                break
            found = chosen(left, self.bounds, best_of)
        return first

    def _train(self, search: Search, log: TrackedRun) -> None:
        trainer = Trainer(self, log)
        healing = Healing(self, trainer, self.wanted.steps)
        healing.heal(search.tried)
        if self.wanted.trials:
            trials.Trials(self, healing, self.wanted.trials, self.wanted.study, self.wanted.steps).run(search.tried)
        if self.wanted.train == "full":
            InTheLoop(self, trainer, self.wanted.steps).train(search.tried)

    def _judged(self, plan: Plan, place: int, log: TrackedRun) -> Judged:
        work = self.path / PLANS / plan.key
        name = f"plan {place}" if place else f"{telling.bits(self.serving.bits[0])} alone"
        if (work / RECORD).is_file() and not atomic.verify_folder(work / "model"):
            found = judged_from(work / RECORD, work / "model")
            self.judge.remember(found.timing)
            return found
        begun = time.monotonic()
        self.console.note(f"{name}: {plan.sentence(self.loaded.config)}; planned {telling.planned(plan)}")
        work.mkdir(parents=True, exist_ok=True)
        self.maker.write(plan, self.serving, work / "model", data_note(self.table))
        judged = self.judge.judge(name, plan, work / "model", begun)
        judged.write(work / RECORD)
        self.tell_child(log, work, judged, method="fit")
        return judged

    def tell_child(self, log: TrackedRun, folder: Path, judged: Judged, **params: Any) -> None:
        """A judged model in a run of its own, or in the one that trained it in `folder`."""
        plan = judged.plan
        with self.child(log, folder, judged.name, "stage") as run:
            run.params({"runtime": self.serving.runtime, "student.layers": len(plan.layers), **params})
            run.metrics(telling.figures(self, judged))
            run.note(plan.sentence(self.loaded.config))

    def child_tags(self, log: TrackedRun) -> dict[str, str]:
        """Of the runs below this one: by parent and data later forecasts find what such plans did."""
        return {
            "compress.parent_run": log.key,
            "compress.fit_parent": modelfolder.fingerprint(self.source),
            "compress.fit_data": self.table.fingerprint,
        }

    def child(self, log: TrackedRun, folder: Path, name: str, role: str) -> TrackedRun:
        return open_run(
            folder, experiment=log.experiment, name=f"{self.path.name}/{name}", method="fit", role=role,
            parent=log.parent, store=log.store, quality=f"quality/{self.metric}", warn=self.console.warn,
            tags=self.child_tags(log),
        )  # fmt: skip

    def _leave(self, search: Search) -> None:
        """The best so far, where the result would be."""
        if search.tried:
            best, met = chosen(search.tried, self.bounds, best_of)
            modelfolder.duplicate(best.folder, self.path / "model")
            how = "within the bounds" if met else "the closest to the bounds"
            self.console.warn(f"the best so far, {best.name}, {how}, is left in {self.path / 'model'}, not certified")


def fit(wanted: Wanted, options: RunOptions, console: Console) -> None:
    """Run it and tell. Raises UserError (REFUSED) where no model meets the bounds, or it cannot be certified."""
    with StopFlag() as stop:
        document = Fit(wanted, options, console, stop).go()
    console.document(document)
    found = document.get("certificate")
    if found is None or found["status"] == certificate.CERTIFIED:
        return
    why = "; ".join(found["why"])
    if found["status"] == certificate.INFEASIBLE:
        raise UserError(
            "infeasible: the closest is " + telling.short(found),
            where="compress fit",
            why=why,
            do="allow more, or look at the family above",
            code=ExitCode.REFUSED,
        )
    if not wanted.uncertified:
        raise UserError(
            "not certified",
            where=document["model"],
            why=why,
            do="run the same command again with --resume on a quiet machine, or take it as it is with --uncertified",
            code=ExitCode.REFUSED,
        )
