"""`compress distill --check`: overfits 64 examples (about a minute) as a sanity check.

A student that cannot learn sixty-four examples by heart will not learn sixty-four thousand: the first thing to try when
one ends at chance (Karpathy 2019, "A Recipe for Training Neural Networks": overfit one batch). Nothing is kept.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from compress.console import Console
from compress.contracts import Batch, Needs, Objective, Progress, RunOptions, TrainingPlan
from compress.data.reading.corpus import Corpus
from compress.data.tables.table import UNLABELLED, Rows, Table, spread_places
from compress.errors import ExitCode, Stopped, UserError
from compress.modelfolder import folder as modelfolder
from compress.recipe import LoadedRecipe
from compress.report.rows import title
from compress.run import Run, build_training_context, input_folder, train_prepared
from compress.run.teachers import Teachers
from compress.stages.distill.checks._check import Finding
from compress.stages.distill.checks.standing_objectives import FALL, find_standing_objectives
from compress.stages.distill.diagnosis import Diagnosis
from compress.stages.distill.text_rows import count_added_rows
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput
from compress.storage.signals import StopFlag
from compress.training.context import NullLog
from compress.training.length import choose_length
from compress.training.module import StageModule

EXAMPLES = 64
SECONDS = 45.0
"""Of training, shared out to the stages; opening data and models comes on top."""
STEPS = 200
LEAST = 40  # steps that are made however long they take: fewer say nothing of a student
EVERY = 10  # steps between two looks
LEARNED = 62 / EXAMPLES
"""Agreement (or the labels' own figure) on the examples from which on they are learned by heart."""
NEAR = 0.1
"""Share of what the loss was above its floor that may be left where answers are trained. A 3-layer student cut from a
6-layer MiniLM on SST-2 is there after 30 steps of 32 rows."""
HALF = 0.8
"""Share that may be left where only hidden states or vocabulary logits are compared: those fall for days."""


@dataclasses.dataclass(frozen=True)
class Outcome:
    """How one stage did. first, last: readings before the first step and after the last: `step`, `probe_loss`,
    `probe/<objective>`, and figures of validation.  floors: objective → what is left of it in a student that
    is the teacher, where that is known.  per_step: seconds of one optimizer step.  total: steps of the whole
    stage, None where that is unknown.  reasons: why it is not healthy; none where it is."""

    name: str
    plan: str
    first: Mapping[str, float]
    last: Mapping[str, float]
    floors: Mapping[str, float]
    per_step: float
    total: int | None
    findings: Sequence[Finding]
    reasons: Sequence[str]

    @property
    def blames_teacher(self) -> bool:
        """Whether the teacher is a reason: what its student learns or not says little then."""
        theirs = {finding.text for finding in self.findings if finding.about == "teacher"}
        return not theirs.isdisjoint(self.reasons)

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "stage": self.name,
            "healthy": not self.reasons,
            "reasons": list(self.reasons),
            "start": dict(self.first),
            "end": dict(self.last),
            "seconds_per_step": self.per_step,
            "steps_of_the_run": self.total,
            "seconds_of_the_run": None if self.total is None else self.total * self.per_step,
            "findings": [finding.as_json() for finding in self.findings],
        }


def check_recipe(
    loaded: LoadedRecipe, options: RunOptions, console: Console, *, verb: str | None, inputs: Mapping[str, Path]
) -> None:
    """Train each distillation stage of a recipe on a few examples, and tell whether it learns them.

    No run, no folder and no record in the store is left (but for a teacher that its recipe has to make first). Raises
    UserError (REFUSED) when a stage does not learn, Stopped when a signal asked to stop.
    """
    _refuse(options)
    given = {key: input_folder(key, path) for key, path in inputs.items()}
    outcomes = _Rehearsal(Run(loaded.recipe, options, console, verb, given)).rehearse()
    for outcome in outcomes:
        _tell(outcome, console)
    reasons = [f"{o.name}: {reason}" for o in outcomes for reason in o.reasons]
    console.document({"healthy": not reasons, "stages": [outcome.as_json() for outcome in outcomes]})
    if reasons:
        teacher = any(outcome.blames_teacher for outcome in outcomes)
        what = "the teacher is not usable" if teacher else "the student does not learn"
        raise UserError(what, where="--check", why="; ".join(reasons), code=ExitCode.REFUSED)
    console.result("healthy: the student learns the examples")


def _refuse(options: RunOptions) -> None:
    flags = {"--output": options.output, "--resume": options.resume, "--dry-run": options.dry_run}
    flags["--print-recipe"] = options.print_recipe
    for flag, value in flags.items():
        if value:
            raise UserError("--check saves no model", where=flag, do="remove it, or remove --check")


class _Rehearsal:
    """Goes through a run's stages on a few examples, and throws the results away."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.sources, self.contexts, self.console = run.sources, run.contexts, run.console

    def rehearse(self) -> list[Outcome]:
        selection, stop = self.run.selection, self.run.stop
        self.run.journal.address()  # an address that cannot be one is an error here too
        self.sources.open()
        teachers = self.run.teachers()
        counts = {i: self._count_rows(selection.stage(i), teachers) for i in selection.indices}
        self._shrink()
        made, outcomes = self.contexts.get_start(), []
        with stop, tempfile.TemporaryDirectory(prefix="compress-check-") as temporary:
            for index in selection.indices:
                spec = selection.stage(index)
                folder = Path(temporary) / f"{index}-{spec.kind}"
                context = self.contexts.of(spec, folder, made, teachers)
                try:
                    outcome, finished = self._rehearse(spec, context, counts[index])
                except Stopped:
                    raise Stopped(f"stopped by {stop.requested}; nothing was saved") from None
                outcomes.append(outcome)
                assert finished.model is not None
                if index != selection.indices[-1]:
                    target = folder / "model"
                    modelfolder.save_model(target, finished.model, tokenizer_files=finished.files, meta=finished.meta)
                    made = dataclasses.replace(made, model=target)
        return outcomes

    def _count_rows(self, spec: Any, teachers: Teachers) -> int:
        """The rows, or documents, of a whole run of a stage."""
        if spec.level == "general":
            return len(self.sources.corpus.splits["train"])
        context = self.contexts.of(spec, Path(), self.contexts.get_start(), teachers)
        return len(self.sources.table.split("train")) + count_added_rows(spec, context)

    def _shrink(self) -> None:
        """Put a few examples in the data's place."""
        sources, corpus_spec = self.sources, self.run.recipe.corpus
        if (table := sources.opened_table) is not None:
            sources.opened_table = _few(table)
        if (corpus := sources.opened_corpus) is not None:
            assert corpus_spec is not None
            sources.opened_corpus = _short(corpus, corpus_spec.max_length)

    def _rehearse(self, spec: Any, context: StageContext, count: int) -> tuple[Outcome, StageOutput]:
        plan = spec.training
        rows = min(plan.batch_rows, EXAMPLES)
        short = plan.model_copy(
            update={
                "steps": STEPS, "epochs": None, "minutes": None, "batch_rows": rows, "schedule": "constant",
                "validate_every": EVERY, "keep_best": False, "checkpoint_every": 10 * STEPS, "log_every": STEPS,
            }
        )  # fmt: skip
        left_out = {
            "augmentation": None, "noise": None, "cache": None, "use_unlabelled": False, "control": False,
            "row_filter": None, "stop": "validation",
        }  # fmt: skip
        changes = {name: value for name, value in left_out.items() if name in type(spec).model_fields}
        prepared = self.contexts.prepare(
            spec.model_copy(update={**changes, "checks": "warn", "training": short}), context
        )
        seconds = SECONDS / len(self.run.selection.indices)
        watch = _Watch(prepared, seconds)
        with self.console.progress(f"{context.folder.name}, check", STEPS) as progress:
            watch.run(prepared, context, _Timed(progress, watch), self.run.stop)
        total = plan.steps
        if total is None and spec.level == "task_specific":
            total = count_steps(count, plan)
        elif total is None:
            assert prepared.source is not None
            blocks = prepared.source.steps(0) * rows / max(1, len(self.sources.corpus.splits["train"]))
            total = count_steps(blocks * count, plan)
        outcome = watch.outcome(context.folder.name, spec, total, plan.batch_rows / rows)
        return outcome, prepared.finish()


def count_steps(rows: float, plan: TrainingPlan) -> int:
    """Optimizer steps of a run over so many rows whose plan names no steps; the most, where its length is automatic."""
    if plan.epochs is None:
        return choose_length(plan, max(1, -(-int(rows) // plan.batch_rows))).most
    return -(-int(rows * plan.epochs) // plan.batch_rows)


def _few(table: Table) -> Table:
    """Evenly spaced training rows, to learn and to be asked about."""
    rows = table.split("train")
    few = rows.take(spread_places(len(rows), EXAMPLES))
    splits = {"train": few, "validation": few, "test": few}
    return dataclasses.replace(table, splits=splits, fingerprint=f"{table.fingerprint} check")


def _short(corpus: Corpus, length: int) -> Corpus:
    """The first documents, for about so many blocks: four bytes of text make a piece."""
    import pyarrow as pa

    texts, size = [], 0
    for text in corpus.texts("train"):
        texts.append(text)
        size += len(text.encode())
        if size >= 4 * length * EXAMPLES:
            break
    column = pa.chunked_array([pa.array(texts, pa.large_string())])
    rows = Rows({"text": column}, np.full(len(texts), UNLABELLED), np.arange(1, len(texts) + 1))
    return Corpus({"train": rows, "validation": rows}, corpus.name, f"{corpus.fingerprint} check")


class _Enough(Exception):  # noqa: N818 - no error: leaves the loop without saving anything
    """The examples are learned, or the time is up."""


class _Watch:
    """Trains a prepared stage until its examples are learned, or `seconds` are over."""

    def __init__(self, prepared: PreparedStage, seconds: float) -> None:
        assert isinstance(prepared.diagnosis, Diagnosis)
        self.diagnosis = prepared.diagnosis
        self.seconds, self.ends = seconds, 0.0
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.floors: dict[str, float] = {}
        self.durations: list[float] = []
        self.since: float | None = None

    def run(self, prepared: PreparedStage, context: StageContext, progress: Progress, stop: StopFlag) -> None:
        assert prepared.module is not None
        assert prepared.validate is not None
        self.diagnosis.begin(NullLog())  # pyright: ignore[reportArgumentType]
        with torch.no_grad():
            prepared.module.eval()
            self.first = {**prepared.validate(prepared.module), **self.diagnosis.first, "step": 0.0}
            self.floors = _floors(self.diagnosis.start.module, self.diagnosis.seen)
        self.ends = time.monotonic() + self.seconds
        told = build_training_context(
            prepared, context, select=None, observe=self._look, log=NullLog(), progress=progress, stop=stop
        )
        try:
            train_prepared(prepared, told)
        except _Enough:
            prepared.module.eval()

    def timed(self) -> None:
        """A step was made."""
        now = time.monotonic()
        if self.since is not None:
            self.durations.append(now - self.since)
        self.since = now

    def _look(self, module: nn.Module, history: Sequence[Mapping[str, float]]) -> dict[str, float]:
        reading = self.diagnosis.observe(module, history)
        self.last = {**history[-1], **reading}
        self.since = None  # a look is no step
        step = self.last["step"]
        over = (time.monotonic() > self.ends and step >= LEAST) or step >= STEPS
        if over or (self._learned() and self._left() < NEAR):
            raise _Enough
        return reading

    def _learned(self) -> bool:
        score = self.diagnosis.start.probe.score
        return not self.diagnosis.start.answers or self.last.get(score, 1.0) >= LEARNED

    def _left(self) -> float:
        """Of what the loss was above its floor, the share that is still there."""
        floor = sum(self.diagnosis.start.module.weights[name] * value for name, value in self.floors.items())
        first = self.first["probe_loss"] - floor
        return max(0.0, self.last["probe_loss"] - floor) / first if first > 0 else 0.0

    def outcome(self, name: str, spec: Any, total: int | None, factor: float) -> Outcome:
        """What came of it. factor: rows of a real step for each row of these."""
        start, steps = self.diagnosis.start, int(self.last["step"])
        aside = {"random_student", "standing_objectives"}  # told in the table, and apart below
        if spec.level == "general":  # a few texts are learned beyond what the teacher knows of them
            aside |= {"falling_agreement", "logit_scales"}
        reasons = [f.text for f in self.diagnosis.findings if f.check not in aside]
        weighed = [name for name, weight in start.module.weights.items() if weight > 0]
        for objective, before, after in find_standing_objectives(self.first, self.last, weighed):
            fell = f"{before:.3g} → {after:.3g} in {steps} steps"
            reasons.append(f"{objective} did not fall by {100 * FALL:g} %: {fell}")
        left, allowed = self._left(), NEAR if start.answers and spec.level == "task_specific" else HALF
        if left > allowed:
            above = f"{100 * left:.0f} % of the initial loss above its floor remains"
            reasons.append(f"{above} after {steps} steps, at most {100 * allowed:.0f} % should be")
        if not self._learned() and spec.level == "task_specific":
            score = start.probe.score
            reasons.append(
                f"{score} with the teacher is {self.last[score]:.3f} on rows that it was trained on repeatedly"
            )
        rows, rate = min(spec.training.batch_rows, EXAMPLES), start.plan.rate
        return Outcome(
            name=name,
            plan=f"{steps} steps of {rows} rows, learning rate {rate:g}",
            first=self.first,
            last=self.last,
            floors=self.floors,
            per_step=statistics.median(self.durations) * factor if self.durations else math.nan,
            total=total,
            findings=self.diagnosis.findings,
            reasons=reasons,
        )


def _floors(module: StageModule, batches: Sequence[Batch]) -> dict[str, float]:
    """Objective → what a student that is the teacher would get, of those that read nothing but the task's logits.

    Labels and a teacher that contradicts them cannot both be learned: what then remains of the labels' loss is no
    failure. The other objectives have their floor at 0.
    """
    teacher = module.teacher
    if teacher is None:
        return {}
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for name, objective in module.objectives.items():
        needs = cast(Objective, objective).student_needs
        if not needs.logits or dataclasses.replace(needs, logits=False) != Needs():
            continue
        for batch in batches:
            said = teacher(batch, Needs(logits=True))
            count = cast(Objective, objective).count(batch)
            sums[name] = sums.get(name, 0.0) + float(objective(said, said, batch)) * count
            counts[name] = counts.get(name, 0) + count
    return {name: value / max(1, counts[name]) for name, value in sums.items()}


class _Timed:
    def __init__(self, inner: Progress, watch: _Watch) -> None:
        self.inner, self.watch = inner, watch

    def update(self, done: int, **figures: float | str) -> None:
        self.watch.timed()
        self.inner.update(done, **figures)


def _tell(outcome: Outcome, console: Console) -> None:
    known = [key for key in outcome.first if key in outcome.last and key not in ("step", "loss")]
    known.sort(key=lambda key: not key.startswith("probe"))
    rows = [(_named(k), outcome.first[k], outcome.last[k], _floor(outcome, k)) for k in known]
    console.table("", (f"{outcome.name}: {outcome.plan}", "before", "after", "floor"), rows)
    for finding in outcome.findings:
        console.result(f"finding  {finding.line}")
    if math.isfinite(outcome.per_step):
        line = f"time     {outcome.per_step:.2g} s a step"
        if outcome.total is not None:
            line += f"; {outcome.total:,} steps of the whole stage take about {_span(outcome.total * outcome.per_step)}"
            line += ", validation and control not counted"
        console.result(line)


def _named(key: str) -> str:
    if key == "probe_loss":
        return "loss"
    if key.startswith("probe/"):
        return "  " + key.removeprefix("probe/")
    if key in ("agreement", "correlation"):
        return f"{key} with the teacher"
    return "KL to the teacher" if key == "kl" else title(key)


def _floor(outcome: Outcome, key: str) -> float | str:
    return outcome.floors.get(key.removeprefix("probe/"), "") if key.startswith("probe/") else ""


def _span(seconds: float) -> str:
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} s"
