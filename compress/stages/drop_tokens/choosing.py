"""Which plan is taken: the fastest whose loss is proven to be within the bound (`evaluation.learn_then_test`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from compress.contracts import Batch
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.tasks import classification, for_head, task_of
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import ExitCode, UserError
from compress.modelfolder.folder import LoadedModel
from compress.recipe.schema import LatencySpec
from compress.stages.drop_tokens.measuring import count_choices, find_mean_length, measure_drops
from compress.stages.drop_tokens.plans import MeasuredDrops, Plan
from compress.stages.drop_tokens.spec import Spec, format_plan
from compress.stages.shared.proof import SPLIT, describe_bound, describe_tests, format_points, require_enough_rows
from compress.stages.shared.stage import StageContext
from compress.stages.shared.task_data import TaskData, sample_batches
from compress.stages.shared.task_head import ONE_LABEL, head_of
from compress.stages.shared.timing import measure_models
from compress.stages.shared.validation import VALIDATION_TOKENS, collect_logits
from evaluation.learn_then_test import draw_proposing, measure_loss, prove_in_order

PLANS = 8
"""Plans that are tested, at most."""
PAYS = 0.95
"""Of the whole model's milliseconds, what a plan may take: less of a gain is lost in the timing."""
WHERE = "max_drop"
SHORT = "short texts have few tokens to drop"
MORE = "allow more, give more validation rows, or train with --keep-tokens"
SERVED = (
    "this model is quantized: it is served by its ONNX file, but these times are of torch; compare the result with its "
    "parent by compress benchmark"
)


@dataclass(frozen=True)
class PlanTrial:
    """A plan that was tested. expected: milliseconds that were predicted.  points: of accuracy, lost on the rows that
    test.  p_value: of a true loss beyond the bound."""

    plan: Plan
    expected: float
    points: float
    p_value: float


@dataclass(frozen=True)
class ProvenPlan:
    """The plan that is taken. tested: all that were, the mildest first.  proof: what is proven of it, and how."""

    plan: Plan
    tested: Sequence[PlanTrial]
    proof: str


def choose_plan(model: LoadedModel, spec: Spec, context: StageContext) -> ProvenPlan:
    """The fastest plan that is proven to lose at most `spec.max_drop` points of accuracy.

    Raises UserError for other heads than of one label a text and for too few validation rows; (refused) where no plan
    is proven, or it does not pay; Stopped where a signal asked for it.
    """
    assert spec.max_drop is not None
    if (head := head_of(model.heads["task"])) != ONE_LABEL:
        raise UserError(
            "max_drop is not supported for this task", where=WHERE, do="set the shares: --keep-tokens 50",
            why=f"a loss is proven on answers that are right or wrong, and this is {for_head(head).kind}",
        )  # fmt: skip
    require_enough_rows(len(context.table().split(SPLIT)), spec.max_drop, spec.confidence, WHERE)
    return _Choice(model, spec, context).choose()


class _Choice:
    """Of one model's plans. proposing: (N,) the validation rows that propose."""

    def __init__(self, model: LoadedModel, spec: Spec, context: StageContext) -> None:
        self.model, self.spec, self.context = model.model, spec, context
        table = context.table()
        self.task = cast(classification.Task, task_of(table.task, table.settings))
        data = TaskData.encode(table, model, context)
        assert data.held_out is not None
        labels = np.asarray(data.held_out.labels)
        self.proposing = draw_proposing(len(labels))
        proposes = self.proposing[self.task.find_rows(data.validation)]
        self.proposed, self.testing = (data.validation.take(np.flatnonzero(x)) for x in (proposes, ~proposes))
        self.gold = labels[~self.proposing]
        self.bound = spec.max_drop or 0.0

    def choose(self) -> ProvenPlan:
        few = sample_batches(self.proposed, len(self.proposed), self.spec.rows, self.context)
        latency = self.context.recipe.evaluation.latency
        if latency.length is None:
            latency = latency.model_copy(update={"length": find_mean_length(few)})
        proven, tested = self._test_plans(self._measure_drops(few, latency))
        if tested:
            self.context.show(f"plans, on the {len(self.gold):,} {SPLIT} rows that test", *tabulate(tested))
        self._require_useful(proven, tested, latency)
        return ProvenPlan(proven[-1].plan, tested, self._describe(proven[-1], len(tested)))

    def _measure_drops(self, few: Sequence[Batch], latency: LatencySpec) -> MeasuredDrops:
        c, choices = self.context, count_choices(self.model.config.depth)
        with c.workshop.progress("losses of dropped tokens", choices, "choices") as progress:

            def told(done: int) -> None:
                c.workshop.stop()
                progress.update(done)

            drops = measure_drops(self.model, few, latency, c.device, told)
        c.say(f"choosing tokens once takes {drops.choosing:.3f} ms for a text of {latency.tokens} tokens, in torch")
        if self.model.config.quantization is not None:
            c.say(SERVED)
        return drops

    def _test_plans(self, drops: MeasuredDrops) -> tuple[list[PlanTrial], list[PlanTrial]]:
        """(proven, tested), from the mildest on: none after the first that is not proven."""
        plans = drops.list_plans(PLANS)
        with self.context.workshop.progress("testing plans", len(plans) + 1, "models") as progress:

            def test() -> Iterator[PlanTrial]:
                whole = self._find_right(self.model)
                progress.update(1)
                for done, plan in enumerate(plans, 2):
                    right = self._find_right(drop_tokens(self.model, plan))
                    progress.update(done)
                    lost, gained = int((whole & ~right).sum()), int((right & ~whole).sum())
                    points, p_value = measure_loss(lost, gained, len(right), self.bound)
                    yield PlanTrial(plan, drops.expect_ms(plan), points, p_value)

            return prove_in_order(test() if plans else (), self.spec.confidence / 100)

    def _find_right(self, model: Model) -> np.ndarray:
        """(R,) bool: which of the rows that test it answers right."""
        c = self.context
        c.workshop.stop()
        batches = (batch.to(c.device) for batch in evaluation_batches(self.testing, VALIDATION_TOKENS))
        logits = collect_logits(prepare(model), batches, self.testing)
        return self.task.pool_chunks(logits, self.testing).argmax(-1) == self.gold

    def _require_useful(self, proven: Sequence[PlanTrial], tested: Sequence[PlanTrial], latency: LatencySpec) -> None:
        """Raise UserError (refused) where no plan is proven, or the fastest of them does not pay."""
        c, bound = self.context, format_points(self.bound)
        if not tested:
            why, do = "no choice of tokens saves its own time", f"use prune-layers or quantize: {SHORT}"
            raise _make_useless_error("no plan is faster", why, do)
        if not proven:
            lost = f"the mildest plan lost {tested[0].points:.2f} (p = {tested[0].p_value:.3f})"
            what = f"no plan is proven to lose at most {bound} of accuracy ({self.spec.confidence:g} % confidence)"
            raise _make_useless_error(what, lost, MORE)
        chosen = drop_tokens(self.model, proven[-1].plan)
        whole, ours = (one.p50 for one in measure_models([self.model, chosen], latency, c.device))
        times = f"{ours:.2f} ms for a text of {latency.tokens} tokens in torch, {whole:.2f} ms with all tokens"
        c.say(times)
        if ours > PAYS * whole:
            what = f"dropping tokens saves less than {100 * (1 - PAYS):.0f} % of the time within {bound}"
            raise _make_useless_error(what, times, f"{MORE}: {SHORT}")

    def _describe(self, chosen: PlanTrial, tested: int) -> str:
        rows, order = len(self.proposing), "from the mildest to the boldest"
        how = describe_tests("plans", order, rows, len(self.gold), tested, chosen.p_value)
        return f"{describe_bound(self.bound, self.spec.confidence, 'the model was')}. {how}"


def tabulate(tested: Sequence[PlanTrial]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of what was tested."""
    rows = [(format_plan(t.plan), f"{t.expected:.2f}", f"{t.points:.2f}", f"{t.p_value:.3f}") for t in tested]
    return ("% of tokens after each layer", "expected ms in torch", "points lost", "p-value"), rows


def _make_useless_error(what: str, why: str, do: str) -> UserError:
    return UserError(what, where=WHERE, why=why, do=do, code=ExitCode.REFUSED)
