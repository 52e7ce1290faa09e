"""`--train full`: quantization-aware training of the best model so far, rounded as it will be deployed, and of the
whole model in 3 and 2 bits where these are within the budgets.

Quantization-aware training by distilling the float parent (Polino et al., arXiv 1802.05668) through straight-through
rounding (Jacob et al., arXiv 1712.05877). The parent reads by the model's own vocabulary, so that hidden states compare
position by position. What comes of it is judged beside what it came from, which stays.
"""

from __future__ import annotations

from pathlib import Path

from compress.encoder.modules.model import Model
from compress.fit.cost.serving import FEW_BITS, FLOAT
from compress.fit.make.bench import Bench
from compress.fit.make.evaluator import Evaluation, best_of
from compress.fit.plan.search import choose_result
from compress.fit.request.case import Case
from compress.fit.train.settings import Settings
from compress.fit.train.trainer import FITTED, OutOfTime, Trainer, TrainingJob
from compress.stages.shared.folder_meta import data_note

SETTINGS = Settings(rate=2e-5, labels=0.0)
"""As of the recipe qat."""
FEW_SETTINGS = Settings(rate=1e-4, labels=0.0)
"""As of the recipe few-bits."""


class InTheLoop:
    """The last training of a fit. folder: of the fit.  steps: of it."""

    def __init__(self, case: Case, bench: Bench, folder: Path, trainer: Trainer, steps: int) -> None:
        self.case, self.bench, self.folder, self.trainer, self.steps = case, bench, folder, trainer, steps

    def train(self, tried: list[Evaluation]) -> None:
        """Train the best of those that were `tried`, and those in few bits within the budgets; add what came of it.

        Raises Stopped where a signal asked."""
        case, best = self.case, choose_result(tried, self.case.bounds, best_of)[0]
        few = [j for j in tried if j.plan.key != best.plan.key and not j.steps and j.plan.word in FEW_BITS]
        for place, judged in enumerate((best, *(j for j in few if not case.bounds.over(j.mb, j.timing.ms, None)))):
            if not place and {*judged.plan.attention_bits, *judged.plan.feed_forward_bits, judged.plan.word} == {FLOAT}:
                case.console.note(f"{judged.name} is not quantized: no quantization-aware training")
                continue
            try:
                made = self._trained(judged)
            except OutOfTime:
                case.console.note(f"no time left for quantization-aware training (limit {case.wanted.seconds:.0f} s)")
                return
            if made is not None:
                tried.append(made)

    def _trained(self, judged: Evaluation) -> Evaluation | None:
        plan, base = judged.plan, judged.name.partition(",")[0]
        more = {
            "teacher": str(self.bench.maker.save_parent(plan, self.folder / "plans" / plan.key / "parent")),
            "model": str(judged.folder),
            "stages.0.student": None,
            "stages.0.taught_by": "teacher",
            "stages.0.dropout": 0,
            "stages.0.training.precision": "fp32",
        }
        name = f"{base}, {judged.steps + self.steps} steps, {self.steps} of them quantized"
        folder: Path = judged.folder.parent / "in-the-loop"
        settings = FEW_SETTINGS if plan.word in FEW_BITS else SETTINGS
        job = TrainingJob(plan, folder, judged.folder, name, self.steps, judged.steps, settings, more)
        said = f"{judged.name}: {self.steps} steps of quantization-aware training"
        return self.trainer.attempt(job, self._write, said, judged.seconds)

    def _write(self, job: TrainingJob, model: Model) -> None:
        bench, steps = self.bench, job.before + job.steps
        how = f"after {steps} steps of distillation, the last {job.steps} with quantization"
        folder = job.folder / FITTED
        bench.maker.write_rounded(job.plan, model, bench.serving, folder, data_note(self.case.table), how)
