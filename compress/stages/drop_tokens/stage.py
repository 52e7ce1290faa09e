"""Drop the least attended tokens between layers (PoWER-BERT, Goyal et al., arXiv 2001.08950); a distillation after it
recovers what that costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path

from compress.encoder.config.encoder import EncoderConfig, HeadConfig
from compress.encoder.config.token_dropping import find_head_obstacle
from compress.encoder.config.unsupported import refuse_dropped_tokens
from compress.encoder.reshape.dropped_tokens import drop_tokens
from compress.errors import UserError, format_count
from compress.modelfolder.folder import LoadedModel, load_model
from compress.stages.drop_tokens.choosing import PlanTrial, ProvenPlan, choose_plan, tabulate
from compress.stages.drop_tokens.plans import Plan
from compress.stages.drop_tokens.spec import Spec, format_plan
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.proof import format_points
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_head import check_same_labels
from compress.tracking import TrackedRun

TRIED = "token-plans.json"


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
            _check_count(self.spec.percentages, made)
        if made is None or made.config is None:
            return made
        if made.embeds:
            raise _make_obstacle_error(find_head_obstacle(HeadConfig("embedding")), "")
        _check_encoder(made.config, "")
        return dataclasses.replace(made, config=None)

    def plan(self) -> list[str]:
        s = self.spec
        if kept := s.percentages:
            return [f"keep {format_plan(kept)} % of the tokens after {'the first' if len(kept) == 1 else 'each'} layer"]
        return [
            f"drop as many tokens between the layers as are proven to lose at most {format_points(s.max_drop or 0)} of "
            f"accuracy ({s.confidence:g} % confidence), by the loss of each layer on {s.rows:,} texts and its time"
        ]

    def prepare(self) -> PreparedStage:
        """Choose which shares of the tokens go on; nothing is left for the training loop.

        Raises UserError where there is no model with a task head, for one that needs all its tokens, and as
        `choose_plan` does."""
        c = self.context
        folder = require_folder(c.model or c.teacher, "a fine-tuned model", "MODEL", "drop_tokens")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        _check_encoder(loaded.config, str(folder))
        if (obstacle := find_head_obstacle(loaded.heads["task"])) is not None:
            raise _make_obstacle_error(obstacle, str(folder))
        check_same_labels(loaded, c.table())
        if kept := self.spec.percentages:
            return self._prepared(folder, loaded, _spread(kept, loaded.config.depth), None)
        found = choose_plan(loaded, self.spec, c)
        return self._prepared(folder, loaded, found.plan, found)

    def _prepared(self, folder: Path, loaded: LoadedModel, plan: Plan, found: ProvenPlan | None) -> PreparedStage:
        c, made, kept = self.context, drop_tokens(loaded.model, plan), format_plan(plan)
        c.say(f"tokens that go on after each layer: {kept} %")
        notes = [f"after each layer {kept} % of a text's tokens go on, those that receive most attention"]
        if found is not None:
            c.say(found.proof)
            notes.append(f"before recovery training: {found.proof}")
        meta = folder_meta(c, {"parent": folder}, c.table(), notes=notes)
        return PreparedStage(
            finish=lambda: StageOutput(made, loaded.tokenizer_files, meta),
            params={
                "student.layers": made.config.depth,
                "student.hidden": made.config.hidden,
                "drop_tokens.kept": kept,
            },
            told=functools.partial(self._report, () if found is None else found.tested),
        )

    def _report(self, tested: Sequence[PlanTrial], log: TrackedRun) -> None:
        if tested:
            log.table(self.context.folder / TRIED, *tabulate(tested))


def _check_count(percentages: Plan, shape: ModelShape) -> None:
    """Raise UserError for a list that does not fit a model that is not made yet."""
    if len(percentages) > 1 and not shape.depth_known:
        raise UserError(
            "a list of percentages needs a known number of layers", where="keep_tokens",
            why="a stage before this one decides how many layers stay",
            do="give a single percentage for all layers, or set keep in stage prune_layers",
        )  # fmt: skip
    _spread(percentages, shape.depth)


def _spread(percentages: Plan, depth: int) -> Plan:
    """One for each layer: a single one holds after all. Raises UserError for any other number of them."""
    if len(percentages) == 1:
        return percentages * depth
    if len(percentages) != depth:
        raise UserError(
            f"found {len(percentages)} percentages, the model has {format_count(depth, 'layer')}",
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
