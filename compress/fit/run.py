"""A fit from its request to its certificate.

    blocks ─ their cost on this machine → study ─ their worth → planner → plans ─ made, written, evaluated → the best ─
    measured on the test rows → certificate

A plan that was made and evaluated is not made again, so a stopped fit resumes where it stopped.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import ExitCode, Stopped, UserError
from compress.fit import outline, report
from compress.fit.certificate import document as certificate
from compress.fit.certificate.issue import certify
from compress.fit.cost import cost_model
from compress.fit.joined_family import join_family
from compress.fit.journal import Journal
from compress.fit.loss.study import as_json
from compress.fit.make.bench import Bench, set_up
from compress.fit.make.candidates import Candidates
from compress.fit.plan.forecast import forecast
from compress.fit.plan.search import Search, find_front
from compress.fit.request.bounds import make_budget_error
from compress.fit.request.case import Case
from compress.fit.request.clock import Clock
from compress.fit.request.options import FitOptions
from compress.fit.train import trials
from compress.fit.train.in_loop import InTheLoop
from compress.fit.train.recovery import RecoveryTraining
from compress.fit.train.trainer import Trainer
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.push import HubRepository, push_and_print
from compress.run.folder import Request, RunFolder, claim, note_new_run, resumable
from compress.run.jobs import hold_cluster, require_cluster
from compress.storage import atomic
from compress.storage.lock import run_lock
from compress.storage.signals import StopFlag
from compress.tracking import experiment, open_requested_run, resolve_store

STUDY = "study.json"


class Fit:
    """One model, fitted to its bounds. case: the model and its data.

    `set_up` makes the bench, on which plans are made and timed; a `Candidates` makes them and selects one; a `Trainer`
    trains the best; `certify` measures what is left.
    """

    def __init__(self, wanted: FitOptions, options: RunOptions, console: Console, stop: StopFlag) -> None:
        clock = Clock(stop, wanted.seconds)
        wanted.check()
        if wanted.trials:
            trials.require()
            if wanted.study:
                trials.require_storage(wanted.study)
        _check_workers(wanted, options)
        if wanted.target is not None and options.device != "cpu":
            raise UserError("a target is a CPU", where=f"--device {options.device}", do="use --device cpu")
        if options.precision == "bf16":
            raise UserError("fit chooses the precision itself", where="--precision bf16", do="remove it")
        self.case = Case.of(wanted, options, console, clock)

    def search(self, bench: Bench) -> Search:
        """What there is to choose from. Raises UserError (REFUSED) below the least possible."""
        wanted, bounds = self.case.wanted, self.case.bounds
        search = Search(bench.spaces, bounds, bench.whole, wanted.plans, wanted.family or wanted.cascade)
        least_ms, least_mb = search.lower_bounds
        for flag, limit, found, unit in (
            ("--max-mb", bounds.max_mb, least_mb, "MB"), ("--max-ms", bounds.max_ms, least_ms, "ms")
        ):  # fmt: skip
            if limit is not None and limit < found:
                raise make_budget_error(flag, limit, found, unit, wanted.serves_on)
        return search

    def go(self) -> dict[str, Any]:
        """Everything, in a folder of its own; the document that --json prints."""
        case, wanted, options = self.case, self.case.wanted, self.case.options
        if options.dry_run:
            return outline.show(case)
        if wanted.plan_only:
            bench = set_up(case)
            return forecast(case, bench, self.search(bench))
        note_new_run(options, case.console.note)
        recipe = case.recipe.model_copy(update={"name": "fit"})
        folder = claim(Request(recipe, "fit", {"fit": wanted.digest()}), options)
        with folder.held():
            return self._go_in(folder)

    def _go_in(self, folder: RunFolder) -> dict[str, Any]:
        """As `go`, in the folder that was claimed."""
        case, options = self.case, self.case.options
        read = {"model": modelfolder.fingerprint(case.source), "data": case.table.fingerprint}
        tracked = f"{resolve_store(options.tracking_uri).shown} {experiment(options)}"
        if case.texts is not None and cost_model.was_fixed_length(folder.path):
            case = self.case = case.with_fixed_length()
        bench = set_up(case, folder.path)
        search = self.search(bench)
        with resumable(folder.path), run_lock(folder.path):
            folder.begin(read)
            folder.record("running", read, tracked)
            try:
                with open_requested_run(
                    folder.path, options, name=folder.path.name, method="fit", warn=case.console.warn,
                    quality=f"quality/{case.metric}",
                ) as log:  # fmt: skip
                    document = self._go(bench, search, Journal(case, bench.serving, folder.path, log))
            except BaseException as error:
                folder.record("stopped" if isinstance(error, Stopped) else "failed", read, tracked)
                raise
            folder.record("finished", read, tracked)
        return document

    def _go(self, bench: Bench, search: Search, journal: Journal) -> dict[str, Any]:
        case, path, log = self.case, journal.path, journal.log
        bench.costs.write(path)
        atomic.write_json(path / STUDY, as_json(bench.space.study))
        log.artifact(path / STUDY)
        log.params({"method": "fit", "runtime": bench.serving.runtime, **case.bounds.as_json()})
        candidates = Candidates(case, bench, journal, search)
        try:
            candidates.make()
            if case.wanted.train == "full":
                candidates.make_few_bits()
            if case.wanted.train != "none":
                self._train(bench, search, journal)
        except Exception:
            candidates.leave()
            raise
        columns, rows = report.plans(case, bench.evaluator, search.tried)
        log.table(path / "plans.json", columns, rows)
        case.console.table("plans, on validation rows", columns, rows)
        best, met = candidates.best()
        model = path / "model"
        modelfolder.duplicate(best.folder, model)
        found = certify(case, bench, journal, best, model)
        family = find_front(search.tried)
        document = {
            "folder": str(path), "model": str(model), "certificate": found,
            "plans": [j.as_json() for j in search.tried], "family": [j.name for j in family],
        }  # fmt: skip
        if case.wanted.family or not met or found["status"] == certificate.INFEASIBLE:
            report.family(case, bench.evaluator, family)
        report.result(case, model, found, log)
        if case.wanted.cascade:
            joined = join_family(case, bench, journal, search.tried, best, met)
            document["cascade"] = joined
            if joined["accepted"]:
                document["model"] = joined["folder"]
                report.location(case, Path(joined["folder"]))
        return document

    def _train(self, bench: Bench, search: Search, journal: Journal) -> None:
        case, wanted = self.case, self.case.wanted
        trainer = Trainer(case, bench.evaluator, journal)
        healing = RecoveryTraining(case, bench, journal.path, trainer, wanted.steps)
        healing.train(search.tried)
        if wanted.trials:
            trials.Trials(case, journal.path, healing, wanted.trials, wanted.study, wanted.steps).run(search.tried)
        if wanted.train == "full":
            InTheLoop(case, bench, journal.path, trainer, wanted.steps).train(search.tried)


def _check_workers(wanted: FitOptions, options: RunOptions) -> None:
    """Raise UserError for workers that would have nothing to do, for a cluster that does not answer, and for one whose
    library is missing."""
    for flag in ("workers", "on"):
        if getattr(options, flag) is not None and wanted.train == "none":
            raise UserError("needs training", where=f"--{flag}", do="add --train recover or --train full")
    require_cluster(options)


def fit(wanted: FitOptions, options: RunOptions, console: Console) -> None:
    """Run it, print the result. Raises UserError (REFUSED) where no model meets the bounds or none can be certified; a
    cascade that meets its bound is the result, whatever the single model's certificate says."""
    if wanted.plan_only and options.push and not options.dry_run:
        raise UserError("--plan-only builds no model", where="--push", do="remove one of the two")
    repository = HubRepository.requested(options)
    with StopFlag() as stop, hold_cluster(options):
        document = Fit(wanted, options, console, stop).go()
    found = document.get("certificate")
    if found is None:
        console.document(document)
        return
    joined = document.get("cascade", {}).get("accepted", False)
    certified = joined or found["status"] in (certificate.CERTIFIED, certificate.PREDICTED)
    accepted = certified or (found["status"] != certificate.INFEASIBLE and wanted.uncertified)
    push_and_print(console, document, Path(document["model"]), repository if accepted else None)
    if certified:
        return
    why = "; ".join(found["why"])
    if found["status"] == certificate.INFEASIBLE:
        raise UserError(
            "no model meets the bounds: the closest is " + report.short(found),
            where="compress fit",
            why=why,
            do="use larger bounds, or choose from the Pareto family above",
            code=ExitCode.REFUSED,
        )
    if not wanted.uncertified:
        raise UserError(
            "not certified",
            where=document["model"],
            why=why,
            do="run the same command with --resume on an idle machine, or accept the model with --uncertified",
            code=ExitCode.REFUSED,
        )
