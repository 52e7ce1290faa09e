"""Runs the training checks on a few fixed rows before the first step and at every validation.

A finding is one line. It is told at once, kept in the run's journal as a tag, and stands in the table `findings.json`
of the stage. What was read off the rows goes into the validation curves: agreement with the teacher, KL, and each
objective without dropout.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import cast

import numpy as np
import torch
from torch import nn

from compress import registry
from compress.contracts import Batch, BatchSource, EncoderOutput, TopLogits, VocabularyOutput
from compress.data.tables.label_order import MATCHED_BY_ID
from compress.data.tables.table import Table
from compress.data.text.tokenizer import Tokenizer
from compress.errors import UserError
from compress.modelfolder.folder import LoadedModel
from compress.stages.distill.checks._check import Course, Finding, Start
from compress.stages.distill.checks.still_projections import matrices
from compress.stages.distill.probe import AskedModel, Carried, CorpusProbe, Probe, TaskProbe
from compress.stages.distill.spec import Spec
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import PreparedStage, StageContext
from compress.tracking import TrackedRun
from compress.training.module import StageModule
from compress.training.precision import autocast

PACKAGE = "compress.stages.distill.checks"
SEEN_ROWS = 64
LEAST_SHARE = 0.25
"""Of these rows that an objective must be about: the gold labels of one row in 64 tell nothing of the others."""
KEPT_BYTES = 64 << 20
"""Of the teacher's outputs on these rows, which are the same at each validation; where they take more, it is asked
again."""


class Diagnosis:
    """The checks of one stage. `begin` before training; `observe` is called at each validation, `close` at the end."""

    def __init__(self, start: Start, source: BatchSource, context: StageContext) -> None:
        self.start, self.context = start, context
        self.seen = _first_rows(source, context.device)
        self._taught: Sequence[EncoderOutput | None] | None = None
        self.findings: list[Finding] = []
        self._checks = [registry.load(PACKAGE, kind)() for kind in registry.parts(PACKAGE)]
        self._log: TrackedRun | None = None
        self.first: dict[str, float] = {}

    def examine(self) -> None:
        """Run the checks that need no training. Raises UserError for a finding with which going on makes no sense."""
        for check in self._checks:
            finding = check.check_start(self.start)
            if finding is not None and finding.stops and self.start.spec.checks == "stop":
                raise UserError(finding.text, where=f"check {finding.check}", do=finding.do)
            self._add(finding)
        self.start = dataclasses.replace(self.start, teacher=None)  # the rest reads what it said; it may be large

    def begin(self, log: TrackedRun) -> None:
        """Read off where training begins; from now on findings go into this journal too."""
        self._log = log
        module = self.start.module
        was = module.training
        module.eval()
        self.first = self._reading(module, self.start.ours)
        module.train(was)
        for finding in self.findings:
            self._tag(finding)

    def observe(self, module: nn.Module, history: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """Answer the probe again and look. history: the validations so far, this one's own figures last, each with its
        `step`. Returns what was read, to be kept in the history. Called in evaluation mode, without gradient."""
        start = self.start
        assert isinstance(module, StageModule)
        ours = start.probe.ask(cast(AskedModel, module.student))
        reading = self._reading(module, ours)
        step = float(history[-1]["step"])
        if step == 0:  # nothing has moved yet
            return reading
        later = [row for row in history[:-1] if row["step"]]
        rows = [{"step": 0.0, **self.first}, *later, {"step": step, **reading}]
        course = Course(start, ours, [row for row in rows if "probe_loss" in row])
        known = {finding.check for finding in self.findings}
        for check in self._checks:
            if check.kind not in known:
                self._add(check.check_progress(course))
        return reading

    def close(self) -> Sequence[Sequence[object]]:
        """What was found, a row of FINDING_COLUMNS each."""
        return [[f.step, f.check, f.text, f.do] for f in self.findings]

    def _reading(self, module: StageModule, ours: np.ndarray) -> dict[str, float]:
        """The probe's figures, and the losses on the fixed training rows."""
        start = self.start
        alike = {} if start.theirs is None else start.probe.compare(ours, start.theirs)
        if self._taught is None:
            self._taught = ask_about(module, self.seen)
        values = measure_objectives(module, self.seen, self._taught, self.context)
        total = sum(module.weights[name] * value for name, value in values.items())
        return {**alike, "probe_loss": total, **{f"probe/{name}": value for name, value in values.items()}}

    def _add(self, finding: Finding | None) -> None:
        if finding is None:
            return
        self.findings.append(finding)
        self.context.say(f"finding: {finding.line}")
        if self._log is not None:
            self._tag(finding)

    def _tag(self, finding: Finding) -> None:
        assert self._log is not None
        self._log.tags({f"compress.finding.{finding.check}": finding.line})


def diagnose_task(
    spec: Spec,
    context: StageContext,
    prepared: PreparedStage,
    table: Table,
    loaded: LoadedModel,
    teacher: AskedModel | None,
    carried: Carried | None = None,
) -> PreparedStage:
    """The stage with its checks, on the table's validation rows. loaded: whose tokenizer reads them.  teacher: one that
    answers any batch, or any that carries what it reads: `carried`."""
    if spec.checks == "off":
        return prepared
    tokenizer = Tokenizer.from_files(loaded.tokenizer_files, where=str(loaded.path))
    length = task_max_length(context.recipe)
    probe = TaskProbe(table, tokenizer, length, context.precision, context.device, carried=carried)
    return _diagnosed(spec, context, prepared, probe, teacher, table)


def diagnose_corpus(
    spec: Spec,
    context: StageContext,
    prepared: PreparedStage,
    held_out: BatchSource,
    vocabulary: int,
    teacher: AskedModel | None,
) -> PreparedStage:
    """The stage with its checks, on hidden pieces of held-out text."""
    if spec.checks == "off":
        return prepared
    blocks = held_out.step(0, 0)
    probe = CorpusProbe(blocks, vocabulary, context.precision, context.device)
    return _diagnosed(spec, context, prepared, probe, teacher, None)


def _diagnosed(
    spec: Spec,
    context: StageContext,
    prepared: PreparedStage,
    probe: Probe,
    teacher: AskedModel | None,
    table: Table | None,
) -> PreparedStage:
    module, source = prepared.module, prepared.source
    assert isinstance(module, StageModule)
    assert source is not None
    assert prepared.plan is not None
    was = module.training
    module.eval()
    start = Start(
        spec=spec,
        plan=prepared.plan,
        module=module,
        probe=probe,
        teacher=teacher,
        ours=probe.ask(cast(AskedModel, module.student)),
        theirs=None if teacher is None else probe.ask(teacher),
        projections=matrices(module.objectives),
        steps=prepared.least_steps(),
        label_names=() if table is None else tuple(table.label_names),
        by_number=table is not None and any(MATCHED_BY_ID in note for note in table.notes),
    )
    module.train(was)
    prepared.diagnosis = Diagnosis(start, source, context)
    if start.theirs is not None and start.answers and spec.stop == "validation":
        prepared.watched = {**prepared.watched, probe.score: "max"}
    elif not start.answers and spec.stop == "validation":  # what is trained shows in no answer
        prepared.watched = {**prepared.watched, "probe_loss": "min"}
    prepared.diagnosis.examine()
    return prepared


def _first_rows(source: BatchSource, device: str) -> list[Batch]:
    """The first micro-batches of the first epoch, 64 rows or what it takes."""
    found: list[Batch] = []
    for index in range(source.steps(0)):
        for batch in source.step(0, index):
            found.append(batch.to(device))
            if sum(b.rows for b in found) >= SEEN_ROWS:
                return found
    return found


def ask_about(module: StageModule, batches: Sequence[Batch]) -> list[EncoderOutput | None]:
    """What the teacher says of each batch, None of those for which there is no room."""
    said, taken = [], 0
    for batch in batches:
        output = module.ask_teacher(batch) if taken < KEPT_BYTES else None
        taken += 0 if output is None else _count_bytes(output)
        said.append(output if taken < KEPT_BYTES else None)
    return said


def _count_bytes(value: object) -> int:
    """Of the tensors in an output. Those of a vocabulary never have room."""
    if isinstance(value, EncoderOutput):
        return sum(_count_bytes(getattr(value, field.name)) for field in dataclasses.fields(value))
    if isinstance(value, VocabularyOutput | TopLogits):
        return KEPT_BYTES
    if isinstance(value, torch.Tensor):
        return value.nbytes
    return sum(map(_count_bytes, value)) if isinstance(value, Sequence) else 0


def measure_objectives(
    module: StageModule, batches: Sequence[Batch], taught: Sequence[EncoderOutput | None], context: StageContext
) -> dict[str, float]:
    """Objective → its mean over these batches, as the module is (evaluation mode: without dropout), without the
    objectives that few of these rows have, as gold labels beside much text. taught: what the teacher said of each;
    None: it is asked."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    with torch.no_grad(), autocast(context.precision, torch.device(context.device)):
        for batch, said in zip(batches, taught, strict=True):
            for name, term in module(batch, said).items():
                sums[name] = sums.get(name, 0.0) + float(term.value) * term.count
                counts[name] = counts.get(name, 0) + term.count
    least = LEAST_SHARE * sum(batch.rows for batch in batches)
    return {name: total / counts[name] for name, total in sums.items() if counts[name] >= least}
