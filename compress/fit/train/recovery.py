"""`--train recover`: recovery training of the best plans from the parent before quantization, by successive halving.

Each rung trains what the last one left, longer and fewer: most plans are separated by little training (Jamieson and
Talwalkar, arXiv 1502.07943). A cut model is trained whole, over the whole vocabulary and in floats; then vocabulary,
tables and bits are cut as its plan says, and it is judged as every plan is.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from compress.encoder.modules.model import Model
from compress.fit.make.bench import Bench
from compress.fit.make.evaluator import Evaluation, share_timings
from compress.fit.plan.plans import Plan
from compress.fit.request.case import Case
from compress.fit.train.trainer import FITTED, OutOfTime, Trainer, TrainingJob
from compress.stages.shared.folder_meta import data_note
from compress.storage import atomic

RUNGS = ((4, 0.25), (2, 0.5), (1, 1.0))
"""How many plans are trained, and for what share of the steps."""


def plan_rungs(steps: int) -> list[tuple[int, int]]:
    """How many plans each rung trains, and for how many steps. steps: of the last rung."""
    return [(count, max(1, round(share * steps))) for count, share in RUNGS]


class RecoveryTraining:
    """The plans of one fit, trained. folder: of the fit.  steps: of the last rung."""

    def __init__(self, case: Case, bench: Bench, folder: Path, trainer: Trainer, steps: int) -> None:
        self.case, self.bench, self.folder, self.trainer, self.steps = case, bench, folder, trainer, steps
        self.trained: dict[str, Path] = {}
        """Name of a judged model → its folder as it was trained, not rounded."""

    def train(self, tried: list[Evaluation]) -> None:
        """Train plans that were `tried`; each is added there as a rung left it.

        Only plans within the budgets of megabytes and milliseconds are trained, those nearest to the parent first, and
        none that cuts no layer, head or neuron: there is nothing to win back by it. A rung that was judged is not run
        again; a plan whose training fails is left out of the next one. Raises Stopped where a signal asked for it.
        """
        field = sorted(self.able(tried), key=lambda j: j.apart)[: RUNGS[0][0]]
        if not field:
            self.case.console.note("no recovery training: no plan within the budgets removes layers, heads or neurons")
        making = {j.plan.key: j.seconds for j in field}
        starts = {j.plan.key: self.start(j.plan) for j in field}
        for rung, (count, steps) in enumerate(plan_rungs(self.steps)):
            here: list[Evaluation] = []
            jobs = [self._job(judged, starts[judged.plan.key], rung, steps) for judged in field[:count]]
            self.trainer.train_together(jobs)
            for job in jobs:
                plan, base = job.plan, job.name.partition(",")[0]
                said = f"{base}: recovery training, round {rung + 1} of {len(RUNGS)}, {steps} steps"
                try:
                    made = self.trainer.attempt(job, self.write, said, making[plan.key])
                except OutOfTime:
                    self.case.console.note(f"no time left for more training (limit {self.case.wanted.seconds:.0f} s)")
                    return
                if made is not None:
                    starts[plan.key] = self.trained[made.name] = job.trained
                    here.append(made)
                    tried.append(made)
            field = sorted(here, key=lambda j: j.apart)

    def _job(self, judged: Evaluation, start: Path, rung: int, steps: int) -> TrainingJob:
        name = f"{judged.name.partition(',')[0]}, {judged.steps + steps} recovery steps"
        return TrainingJob(judged.plan, self.work(judged.plan) / f"rung-{rung}", start, name, steps, judged.steps)

    def able(self, tried: Sequence[Evaluation]) -> list[Evaluation]:
        """The plans that may be trained."""
        within = [j for j in share_timings(tried) if not j.steps and not self.case.bounds.over(j.mb, j.timing.ms, None)]
        return [j for j in within if self.bench.maker.needs_narrowing(j.plan)]

    def work(self, plan: Plan) -> Path:
        """Where a plan's trainings lie."""
        return self.folder / "plans" / plan.key / "healing"

    def start(self, plan: Plan) -> Path:
        """The folder of the plan's cut model, not rounded, that training starts from."""
        folder = self.work(plan) / "start"
        if not folder.is_dir() or atomic.verify_folder(folder):
            self.bench.maker.save_narrow(plan, folder, data_note(self.case.table))
        return folder

    def write(self, job: TrainingJob, model: Model) -> None:
        """The rest of the plan done to what was trained, and the file."""
        bench, steps = self.bench, job.before + job.steps
        folder = job.folder / FITTED
        how = f"after {steps} steps of recovery training (distillation)"
        bench.maker.write(job.plan, bench.serving, folder, data_note(self.case.table), narrow=model, how=how)
