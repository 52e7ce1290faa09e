"""Drop the least attended tokens between layers (PoWER-BERT, Goyal et al., arXiv 2001.08950); a distillation after it
recovers what that costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from compress.contracts import Batch
from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.token_dropping import find_head_obstacle
from compress.encoder.config.unsupported import refuse_dropped_tokens
from compress.encoder.modules.model import Model
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import ExitCode, UserError
from compress.modelfolder.folder import LoadedModel, load_model
from compress.recipe.schema import LatencySpec
from compress.stages.drop_tokens.measuring import count_choices, find_mean_length, measure_drops
from compress.stages.drop_tokens.plans import MeasuredDrops, Plan
from compress.stages.drop_tokens.spec import Spec, format_plan
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import TaskData, sample_batches
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.timing import measure_models
from compress.stages.shared.validation import score_model, task_choice, task_validation
from compress.tracking import TrackedRun

PLANS = 8
"""Plans that are evaluated on all validation rows, at most."""
PAYS = 0.95
"""Of the whole model's milliseconds, what a plan may take: less of a gain is lost in the timing."""
TRIED = "token-plans.json"


@dataclass(frozen=True)
class PlanTrial:
    """A plan that was evaluated. expected: milliseconds that were predicted.  points: lost on validation."""

    plan: Plan
    expected: float
    points: float


class Stage:
    """The previous model, or the teacher → the same model with fewer tokens from layer to layer."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        # Prepared models, which losses and times are measured of, compute in fp32.
        self.spec, self.context = spec, dataclasses.replace(context, precision="fp32")

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        made = start or teacher
        if made is not None and self.spec.percentages:
            _spread(self.spec.percentages, made.depth)
        if made is None or made.config is None:
            return made
        if made.embeds:
            raise _make_obstacle_error(find_head_obstacle(HeadConfig("embedding")), "the model")
        _check_encoder(made.config, "the model")
        return dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        if kept := s.percentages:
            return [f"keep {format_plan(kept)} % of the tokens after {'the first' if len(kept) == 1 else 'each'} layer"]
        return [
            f"drop as many tokens between the layers as lose at most {s.max_drop:g} points on validation, by the loss "
            f"of each layer on {s.rows:,} texts and its time"
        ]

    def prepare(self) -> PreparedStage:
        """Choose which shares of the tokens go on; nothing is left for the training loop.

        Raises UserError where there is no model with a task head, for one that needs all its tokens, and (refused)
        where dropping tokens saves no time within the bound; Stopped where a signal asked for it."""
        c = self.context
        folder = require_folder(c.model or c.teacher, "a fine-tuned model", "MODEL", "drop_tokens")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        _check_encoder(loaded.config, str(folder))
        if (obstacle := find_head_obstacle(loaded.heads["task"])) is not None:
            raise _make_obstacle_error(obstacle, str(folder))
        check_same_labels(loaded, c.table())
        if kept := self.spec.percentages:
            plan, tried = _spread(kept, loaded.config.depth), ()
        else:
            plan, tried = self._choose(loaded)
        made = drop_tokens(loaded.model, plan)
        c.say(f"tokens that go on after each layer: {format_plan(plan)} %")
        return self._prepared(folder, loaded, made, tried)

    def _prepared(self, folder: Path, loaded: LoadedModel, made: Model, tried: Sequence[PlanTrial]) -> PreparedStage:
        c, kept = self.context, format_plan(made.config.kept_tokens or ())
        meta = folder_meta(c, {"parent": folder}, c.table())
        note = f"after each layer {kept} % of a text's tokens go on, those that receive most attention"
        meta = meta.model_copy(update={"notes": (*meta.notes, note)})
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "drop_tokens.kept": kept,
            },
            told=functools.partial(self._tell, tried),
        )

    # --- which tokens ---------------------------------------------------------------------------------------

    def _choose(self, loaded: LoadedModel) -> tuple[Plan, Sequence[PlanTrial]]:
        """The boldest plan within the bound, and all that were evaluated."""
        c, model = self.context, loaded.model
        data = TaskData.encode(c.table(), loaded, c)
        few = sample_batches(data.validation, len(data.validation), self.spec.rows, c)
        latency = c.recipe.evaluation.latency
        if latency.length is None:
            latency = latency.model_copy(update={"length": find_mean_length(few)})
        drops = self._measure_drops(model, few, latency)
        tried = self._try_plans(model, data, drops)
        if tried:
            c.show("plans, on validation rows", *_tabulate(tried))
        return self._take_fastest(model, tried, latency), tried

    def _measure_drops(self, model: Model, few: Sequence[Batch], latency: LatencySpec) -> MeasuredDrops:
        c, choices = self.context, count_choices(model.config.depth)
        with c.workshop.progress("losses of dropped tokens", choices, "choices") as progress:

            def told(done: int) -> None:
                c.workshop.stop()
                progress.update(done)

            drops = measure_drops(model, few, latency, c.device, told)
        c.say(f"choosing tokens once takes {drops.choosing:.3f} ms for a text of {latency.tokens} tokens, in torch")
        return drops

    def _try_plans(self, model: Model, data: TaskData, drops: MeasuredDrops) -> list[PlanTrial]:
        """On all validation rows, one after the other from the mildest on, until one loses more than the bound."""
        c, tried, plans = self.context, list[PlanTrial](), drops.list_plans(PLANS)
        if not plans:
            return tried
        assert self.spec.max_drop is not None
        with c.workshop.progress("evaluating plans", len(plans), "plans") as progress:
            lost = self._measure_loss(model, data)
            for plan in plans:
                c.workshop.stop()
                tried.append(PlanTrial(plan, drops.expect_ms(plan), lost(plan)))
                progress.update(len(tried))
                if tried[-1].points > self.spec.max_drop:
                    break
        return tried

    def _take_fastest(self, model: Model, tried: Sequence[PlanTrial], latency: LatencySpec) -> Plan:
        """The last plan within the bound. Raises UserError (refused) where there is none, or it saves no time."""
        c, bound = self.context, self.spec.max_drop
        assert bound is not None
        within = [trial.plan for trial in tried if trial.points <= bound]
        if not within:
            least = f"the mildest loses {tried[0].points:.2f}" if tried else "no choice of tokens saves its own time"
            raise _make_useless_error(f"no plan is faster within {bound:g} points", least)
        whole, ours = (one.p50 for one in measure_models([model, drop_tokens(model, within[-1])], latency, c.device))
        times = f"{ours:.2f} ms for a text of {latency.tokens} tokens in torch, {whole:.2f} ms with all tokens"
        c.say(times)
        if ours > PAYS * whole:
            raise _make_useless_error(f"dropping tokens saves no time within {bound:g} points", times)
        return within[-1]

    def _measure_loss(self, model: Model, data: TaskData) -> Callable[[Plan], float]:
        """Plan → points of the main metric that it loses on the validation rows."""
        metric, _ = task_choice(self.context.table())
        validate = task_validation(data, self.context.table(), self.context)
        whole = score_model(model, validate, metric)
        return lambda plan: 100 * (whole - score_model(drop_tokens(model, plan), validate, metric))

    def _tell(self, tried: Sequence[PlanTrial], log: TrackedRun) -> None:
        if tried:
            log.table(self.context.folder / TRIED, *_tabulate(tried))


def _spread(percentages: Plan, depth: int) -> Plan:
    """One for each layer: a single one holds after all. Raises UserError for any other number of them."""
    if len(percentages) == 1:
        return percentages * depth
    if len(percentages) != depth:
        raise UserError(
            f"found {len(percentages)} percentages, the model has {depth} layer{'s' if depth > 1 else ''}",
            where="keep_tokens",
            do=f"give {depth}, one for each layer, or a single one for all" if depth > 1 else "give one",
        )
    return percentages


def _check_encoder(config: EncoderConfig, where: str) -> None:
    refuse_dropped_tokens(config, "choosing them again", where)
    if config.dropping_obstacle is not None:
        raise _make_obstacle_error(config.dropping_obstacle, where)


def _make_obstacle_error(obstacle: str | None, where: str) -> UserError:
    return UserError("this model needs all of its tokens", where=where, why=obstacle, do="use prune-layers or quantize")


def _make_useless_error(what: str, why: str) -> UserError:
    do = "allow more, train with --keep-tokens, or use prune-layers: short texts have few tokens to drop"
    return UserError(what, where="max_drop", why=why, do=do, code=ExitCode.REFUSED)


def _tabulate(tried: Sequence[PlanTrial]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """(columns, rows) of what was tried."""
    rows = [(format_plan(trial.plan), f"{trial.expected:.2f}", f"{trial.points:.2f}") for trial in tried]
    return ("% of tokens after each layer", "expected ms", "points lost"), rows
