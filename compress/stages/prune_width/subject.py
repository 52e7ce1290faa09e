"""The model to prune, its calibration text, its costs and the target."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compress import registry
from compress.contracts import Batch, WidthImportance, WidthScores
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.randomness import draw_spread_rows
from compress.data.batches.task_batches import TaskBatches
from compress.encoder.config.encoder import EncoderConfig
from compress.encoder.config.unsupported import refuse_dropped_tokens, refuse_low_rank, refuse_quantized, refuse_sparse
from compress.encoder.infer.prepare import prepare
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel, load_model
from compress.predict.predictor import MAX_TOKENS
from compress.stages.prune_width import latency, targets
from compress.stages.prune_width.costs import Costs, operations, parameters
from compress.stages.prune_width.report import SizeTrial
from compress.stages.prune_width.spec import Spec
from compress.stages.prune_width.study import STUDY_TOKENS, Target, WidthStudy
from compress.stages.shared.stage import StageContext, require_folder
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.task_head import check_same_labels

PACKAGE = "compress.stages.prune_width.importance"
VALIDATION_ROWS = 2000
"""Most that the divergence from the model as it was is told on."""
STEP_ROWS = 32
"""Of a step, for importances that train."""


@dataclass
class Subject:
    """The model that is cut, and what is known of it. origin: the shape that targets count from."""

    spec: Spec
    context: StageContext
    folder: Path
    loaded: LoadedModel
    origin: EncoderConfig
    study: WidthStudy
    importance: WidthImportance
    validation: list[Batch]
    scores: WidthScores | None = None
    tried: list[SizeTrial] = field(default_factory=list)

    @classmethod
    def of(cls, spec: Spec, context: StageContext) -> Subject:
        """The stage's model and text, opened and checked. Raises UserError."""
        c, s = context, spec
        folder = require_folder(c.model or c.teacher, "a fine-tuned model to prune", "MODEL", "prune_width")
        loaded = load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        refuse_quantized(loaded.config, "cutting it", str(folder))
        origin, teacher = loaded.config, None
        if c.model is not None and c.teacher is not None:
            first = modelfolder.inspect(c.teacher)
            if first.config.depth == loaded.config.depth:
                origin = first.config
            if s.importance.options().get("on") in ("teacher", "both") and c.teacher != c.model:
                teacher = prepare(load_model(c.teacher, require={"task"}, keep={"task"}, device=c.device).model)
        check(s, loaded.config, origin, str(folder))
        table = c.table()
        check_same_labels(loaded, table)
        data = TaskData.encode(table, loaded, c)
        rows = min(s.rows, len(data.train))
        chosen = data.train.take(draw_spread_rows(len(data.train), rows, c.seed, "width-study"))
        study = WidthStudy(
            loaded.model,
            [batch.to(c.device) for batch in evaluation_batches(chosen, STUDY_TOKENS)],
            seed=c.seed,
            name=str(folder),
            stop=c.workshop.stop,
            teacher=teacher,
            training=TaskBatches(chosen, STEP_ROWS, MAX_TOKENS, c.seed),
        )
        few = data.validation
        if len(few) > VALIDATION_ROWS:
            few = few.take(draw_spread_rows(len(few), VALIDATION_ROWS, c.seed, "width-validation"))
        validation = [batch.to(c.device) for batch in evaluation_batches(few, MAX_TOKENS)]
        made = cls(s, c, folder, loaded, origin, study, build(s.importance, study), validation)
        study.target = made.target
        return made

    @property
    def config(self) -> EncoderConfig:
        return self.loaded.config

    @property
    def was_cut(self) -> bool:
        """Whether it is narrower than the teacher already: by an earlier round of a schedule, or an earlier stage."""
        return self.config != self.origin

    @property
    def length(self) -> int:
        """Tokens of the sequence that operations are counted of."""
        return min(self.context.recipe.evaluation.latency.tokens, self.config.max_positions)

    def costs(self, config: EncoderConfig, unit: str) -> Costs:
        """In parameters or in operations, of a model of this shape with the same heads."""
        heads = self.loaded.heads
        return parameters(config, heads) if unit == "parameters" else operations(config, heads, self.length)

    def budget(self) -> tuple[Costs, float]:
        """What heads and neurons cost, and what all may cost together: parameters, operations or milliseconds."""
        s = self.spec
        wide = targets.narrow_config(s, self.config, self.origin)
        if s.target_latency is not None:
            table, _ = latency.table(
                wide, self.loaded.heads, self.context.recipe.evaluation.latency, self.context.device
            )
            return table.costs(wide), s.target_latency
        unit = "parameters" if s.target_params is not None else "operations"
        value = s.target_params or s.target_flops or 0
        return self.costs(wide, unit), targets.budget_of(value, self.costs(self.origin, unit).maximum, s.schedule)

    def target(self) -> Target:
        """What is to be left, as shares of what there is."""
        s = self.spec
        hidden = targets.narrow_config(s, self.config, self.origin).hidden / self.config.hidden
        if s.target_params is not None or s.target_flops is not None or s.target_latency is not None:
            costs, budget = self.budget()
            share = min(1.0, max(0.0, (budget - costs.fixed) / (costs.maximum - costs.fixed)))
            return Target(share, share, hidden, s.uneven)
        heads, neurons = targets.shares(s, self.config, self.origin)
        return Target(heads, neurons, hidden, s.uneven)


def check(spec: Spec, config: EncoderConfig, origin: EncoderConfig, where: str = "") -> None:
    """Raise UserError for what can be told from the shape alone. where: the model's folder, once it is known."""
    refuse_quantized(config, "cutting it", where)
    refuse_low_rank(config, "cutting it", where)
    refuse_sparse(config, "cutting it", where)
    refuse_dropped_tokens(config, "cutting heads", where)
    targets.check_counts(spec, origin)
    if targets.narrow_config(spec, config, origin) != config and config.sharing is not None:
        raise UserError(
            "this model's layers share matrices and also have their own parameters",
            where="hidden" if spec.hidden is not None else "head_width",
            why="heads and neurons of such a model can be pruned, channels cannot",
            do="prune its width first, then share its layers",
        )


def build(row: Any, study: WidthStudy) -> WidthImportance:
    """The importance that a recipe row means. Raises UserError when it needs labels that are not there."""
    importance: WidthImportance = registry.build(PACKAGE, row)
    if importance.reads_labels and not study.labelled:
        raise UserError(
            f"importance {row.kind} needs labels, and no training row has one",
            where=study.name,
            do="give labelled data, or use one that needs no labels: hessian, activation, or on: answers or teacher",
        )
    return importance
