"""What plans are made, timed and evaluated with: set up once, before the first plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from compress.encoder.infer.prepare import prepare
from compress.fit import report
from compress.fit.cost import cost_model
from compress.fit.cost.cost_model import Costs, StaticRanges
from compress.fit.cost.gpu_time import describe_gpu_time
from compress.fit.cost.serving import Serving, build_parts, quantize_to_bits
from compress.fit.loss.saved_study import load_or_make_study
from compress.fit.loss.study import Student
from compress.fit.make.build import Maker
from compress.fit.make.evaluator import Evaluator, Timing
from compress.fit.plan.plans import Plan, Space
from compress.fit.request.bounds import make_budget_error
from compress.fit.request.case import Case
from compress.fit.request.setup import compute_least_megabytes
from compress.fit.target.target_costs import predict_plan, read_costs
from compress.stages.prune_width.costs import Counts
from compress.stages.shared.labelled_data import settings_for

STATIC = ("onnxruntime", "openvino")
"""Runtimes that are faster with static input ranges."""
WORTH = 0.97
"""Of the time with a scale for each token, what static ranges may take to be worth planning with."""
REPEATS, SECONDS = 40, 4.0
"""Of the models that are timed before there are plans."""
NARROW = 0.3
"""Of the milliseconds of heads and neurons, what a second model keeps by which planned ones are corrected."""


@dataclass(frozen=True)
class Bench:
    """costs: what plans cost on this machine.  evaluator: compares with the parent.  space: the plans that there
    are.  maker: makes their models.  whole: the plan that cuts nothing and is quantized as usual.  static: the plans
    with static input ranges, where these are faster."""

    costs: Costs
    evaluator: Evaluator
    space: Space
    maker: Maker
    whole: Plan
    static: Space | None = None

    @property
    def spaces(self) -> list[Space]:
        """Of all plans."""
        return [self.space] if self.static is None else [self.space, self.static]

    @property
    def serving(self) -> Serving:
        """How models are served."""
        return self.costs.serving


def set_up(case: Case, folder: Path | None = None) -> Bench:
    """Measure what blocks of the model cost and are worth. folder: of a run that may have begun.

    Raises UserError (REFUSED) for a bound on megabytes below the least possible, and Stopped.
    """
    wanted, console, check = case.wanted, case.console, case.clock.check
    target = None if wanted.target is None else read_costs(case, wanted.target)
    runtime = case.options.runtime if target is None else target.serving.runtime
    least = compute_least_megabytes(case.loaded, runtime, case.shape)
    if case.bounds.max_mb is not None and case.bounds.max_mb < least:
        raise make_budget_error("--max-mb", case.bounds.max_mb, least, "MB", case.wanted.serves_on)
    found = target or cost_model.of(case.loaded, runtime, case.shape, folder, console)
    serving, blocks = found.serving, found.blocks
    evaluator = Evaluator(
        case.loaded, serving, case.table.split("validation"), task=case.table.task,
        settings=settings_for(case.recipe, case.table), max_length=case.max_length,
        predict=None if target is None else partial(predict_plan, target),
    )  # fmt: skip
    student = Student(
        case.loaded, case.task, case.table, serving, case.max_length, case.recipe.seed, check, console.note
    )
    study, scales = load_or_make_study(
        student, blocks, check, console.note, joins=wanted.saves_bytes, watch=console.slow_progress
    )
    uncorrected = Space(study, blocks, 1.0, scales)
    check()
    fresh = found.timing is None
    timing = found.timing or _time_whole(case, found, evaluator, student, uncorrected)
    evaluator.remember(timing)
    space = Space(study, blocks, found.factor, scales, found.extra)
    how = "measured there" if target else "measured" if timing.quiet else "measured on a busy machine"
    console.note(
        f"the full model in {report.bits(serving.bits[0])}: {timing.ms:.2f} ms, {how}; predicted latency = "
        f"{found.factor:.3f} x the sum of its parts + {found.extra:.2f} ms"
    )
    maker, whole = Maker(student, space, check), space.plan_whole_model(serving.bits[0])
    if serving.runtime in STATIC and (fresh or found.static_ms is not None):
        found.static = _measure_static_ranges(case, found, evaluator, maker, whole)
    static = None if found.static is None else space.with_static_ranges(found.static.ms, found.static.loss)
    if target is None and (line := describe_gpu_time(evaluator.parent_call, serving)) is not None:
        console.note(line)
    return Bench(found, evaluator, space, maker, whole, static)


def _time_whole(case: Case, found: Costs, evaluator: Evaluator, student: Student, space: Space) -> Timing:
    """Of a real model, the whole one as it is usually rounded. It and one with NARROW of the milliseconds of its heads
    and neurons correct what is planned."""
    serving = found.serving
    whole, narrow = space.plan_whole_model(serving.bits[0]), space.probe(NARROW)[0]
    maker = Maker(student, space, case.clock.check)
    model = maker.narrow(narrow.layers, Counts(narrow.heads, narrow.neurons), fitted=False)
    timings = []
    for plan, made in ((whole, case.loaded.model), (narrow, model)):
        case.clock.check()
        call = build_parts(quantize_to_bits(made, plan.modules(case.loaded.config), serving), serving)
        timings.append(evaluator.beside_parent(call, REPEATS, SECONDS))
    found.timing = timings[0]
    found.correct((whole.ms, timings[0].ms), (narrow.ms, timings[1].ms))
    return timings[0]


def _measure_static_ranges(
    case: Case, found: Costs, evaluator: Evaluator, maker: Maker, whole: Plan
) -> StaticRanges | None:
    """Of the whole model in 8 bits: its time beside the parent, and how much farther its answers are from the parent's
    than with a scale for each token. None where it is hardly faster."""
    assert found.timing is not None
    made = maker.model(replace(whole, ranges="static"), found.serving)[0]
    ms = found.static_ms or evaluator.beside_parent(build_parts(made, found.serving), REPEATS, SECONDS).ms
    if ms > WORTH * found.timing.ms:
        return None
    per_token = maker.model(whole, found.serving)[0]
    lost = [maker.student.compute_kl_to_parent(prepare(model)) for model in (made, per_token)]
    static = StaticRanges(ms, lost[0] - lost[1])
    case.console.note(
        f"with static input ranges: {ms:.2f} ms, {case.loss_words.name} to the parent {static.loss:+z.4f}"
    )
    return static
