"""The models of a fit: plans are made and evaluated until none is left, and the best is selected."""

from __future__ import annotations

import time
from dataclasses import replace

from compress.fit import report
from compress.fit.certificate import document as certificate
from compress.fit.cost.serving import FEW_BITS
from compress.fit.journal import Journal
from compress.fit.make.bench import Bench
from compress.fit.make.evaluator import RECORD, Evaluation, best_of, read_evaluation
from compress.fit.plan.plans import Plan
from compress.fit.plan.search import Search, choose_result
from compress.fit.request.case import Case
from compress.modelfolder import folder as modelfolder
from compress.stages.shared.folder_meta import data_note
from compress.storage import atomic

PLANS = "plans"
HELD = 0.985
"""Of the bound on milliseconds, what a model may take before it is certified, where it is timed once more."""
NEAR = (0.9, 1.03)
"""Of that bound, between which a model's first, short timing does not tell whether it holds."""


class Candidates:
    """Makes and evaluates the plans of a search. timed: keys of plans that were timed as the certificate will."""

    def __init__(self, case: Case, bench: Bench, journal: Journal, search: Search) -> None:
        self.case, self.bench, self.journal, self.search = case, bench, journal, search
        self.timed: set[str] = set()

    def make(self) -> None:
        """Until there is no plan left or no time; the whole model in 8 bits first. Raises Stopped."""
        case, search = self.case, self.search
        plan: Plan | None = self.bench.whole
        while plan is not None:
            case.clock.check()
            if search.skip(plan, self.bench.maker.megabytes(plan, self.bench.serving)):
                plan = self._next()
                continue
            judged = self._judged(plan, len(search.tried))
            search.tried.append(judged)
            best, met = choose_result(search.tried, case.bounds, best_of)
            case.console.note(report.progress(case.metric, judged, best, met))
            if case.clock.late(judged.seconds):
                case.console.note(f"no time left for another plan (limit {case.wanted.seconds:.0f} s)")
                return
            plan = self._next()

    def make_few_bits(self) -> None:
        """The whole model in 3 and in 2 bits, with as much of its vocabulary as the bound on megabytes allows: poor
        before it is trained, so that no search would choose it. Nothing where 8 bits are within the bound, and where
        what is deployed holds no integers. Raises Stopped."""
        case, bench = self.case, self.bench
        bound, tried = case.bounds.max_mb, self.search.tried
        if bound is None or not bench.serving.writes or bench.maker.megabytes(bench.whole, bench.serving) <= bound:
            return
        for bits in FEW_BITS:
            for vocabulary in sorted(bench.space.study.vocabularies, key=lambda v: v.loss):
                case.clock.check()
                plan = bench.space.in_few_bits(bench.whole, bits, vocabulary)
                megabytes = bench.maker.megabytes(plan, bench.serving)
                if megabytes > bound:
                    continue
                if tried and case.clock.late(tried[-1].seconds):
                    case.console.note(f"no time left for a model in {bits} bits (limit {case.wanted.seconds:.0f} s)")
                    return
                tried.append(self._judged(replace(plan, mb=megabytes), len(tried)))
                break

    def best(self) -> tuple[Evaluation, bool]:
        """(the model to leave, whether it meets the bounds): the best of those that are within the milliseconds when
        they are timed as the certificate will time one; of several, the best is often the one whose time came out low.
        The best of all where none is."""
        case = self.case
        first = found = choose_result(self.search.tried, case.bounds, best_of)
        left, bound = list(self.search.tried), case.bounds.max_ms
        while bound is not None and found[1] and found[0].timing.predicted is None:
            case.clock.check()
            best = found[0]
            took = certificate.latency(self.bench.evaluator, best.folder, best.plan).certain
            if took <= HELD * bound:
                return found
            case.console.note(f"{best.name} is too slow when timed again: {took:.2f} ms, bound {bound:g}")
            left = [j for j in left if j.plan.key != best.plan.key]
            if not left:
                break
            found = choose_result(left, case.bounds, best_of)
        return first

    def leave(self) -> None:
        """Copy the best so far to where the result would be."""
        tried, target = self.search.tried, self.journal.path / "model"
        if tried:
            best, met = choose_result(tried, self.case.bounds, best_of)
            modelfolder.duplicate(best.folder, target)
            how = "which meets the bounds" if met else "which is closest to the bounds"
            self.case.console.warn(
                f"the best model so far, {best.name}, {how}, was copied to {target} without a certificate"
            )

    def _next(self) -> Plan | None:
        """The plan to make now; where there is none, perhaps there is when times are known better."""
        plan = self.search.next()
        return self.search.next() if plan is None and self.time_again() else plan

    def time_again(self) -> bool:
        """Time once more, as the certificate will, what was timed on a busy machine and what is near the bound: what is
        trained, and what is left out, hangs on it. Whether one is known better now. Raises Stopped."""
        case, tried = self.case, self.search.tried
        better, bound = False, case.bounds.max_ms
        for place, judged in enumerate(tried):
            timing = judged.timing
            near = bound is not None and NEAR[0] * bound <= timing.ms <= NEAR[1] * bound
            settled = timing.quiet and (judged.plan.key in self.timed or not near)
            if bound is None or settled or timing.predicted is not None:
                continue
            case.clock.check()
            if case.clock.late(certificate.SECONDS):
                break
            timing = certificate.latency(self.bench.evaluator, judged.folder, judged.plan)
            self.timed.add(judged.plan.key)
            if timing.quiet:
                better = True
                tried[place] = found = replace(judged, timing=timing)
                found.write(self.journal.path / PLANS / found.plan.key / RECORD)
                case.console.note(f"{found.name}: timed again, {found.timing.ms:.2f} ms")
        return better

    def _judged(self, plan: Plan, place: int) -> Evaluation:
        """A plan made and evaluated; what was made and evaluated before is not made again."""
        case, bench = self.case, self.bench
        work = self.journal.path / PLANS / plan.key
        name = f"plan {place}" if place else f"{report.bits(bench.serving.bits[0])} only"
        if (work / RECORD).is_file() and not atomic.verify_folder(work / "model"):
            found = read_evaluation(work / RECORD, work / "model")
            bench.evaluator.remember(found.timing)
            return found
        begun = time.monotonic()
        predicted = report.format_plan(plan, case.loss_words.unit)
        case.console.note(f"{name}: {plan.sentence(case.loaded.config)}; predicted {predicted}")
        work.mkdir(parents=True, exist_ok=True)
        bench.maker.write(plan, bench.serving, work / "model", data_note(case.table))
        judged = bench.evaluator.evaluate(name, plan, work / "model", begun)
        judged.write(work / RECORD)
        self.journal.record(work, judged, method="fit")
        return judged
