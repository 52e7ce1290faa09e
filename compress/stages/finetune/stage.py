"""Fine-tune an encoder with a task head on labelled text (Devlin et al. 2019)."""

from __future__ import annotations

from compress.data.text.tokenizer import check_length
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.finetune.spec import Spec
from compress.stages.shared.stage import (
    WATCHED,
    ModelShape,
    PreparedStage,
    StageContext,
    StageOutput,
    TaskData,
    describe_task_plan,
    folder_meta,
    load_for_task,
    require_folder,
    settle_plan,
    task_choice,
    task_max_length,
    task_validation,
)
from compress.training.module import StageModule


class Stage:
    """Trains a model with a task head on labelled rows."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        if start is not None:
            check_length(task_max_length(self.context.recipe), start.positions, where="data.max_length")
        return start

    def plan(self) -> list[str]:
        return [f"fine-tune: {describe_task_plan(self.spec.training, self.context, self.context.model)}"]

    def prepare(self) -> PreparedStage:
        """The model with a task head for the table's labels, its encoded rows, and the labels' loss to train it with.

        Raises UserError where there is no model, where its head answers another task or other labels (unless
        `new_head`), and for a tokenizer or lengths that do not fit."""
        c, spec = self.context, self.spec
        folder = require_folder(c.model, "a model to start from", "--model", "finetune")
        table = c.table()
        loaded = load_for_task(folder, table, c, dropout=spec.dropout, new_head=spec.new_head)
        data = TaskData.encode(table, loaded, c, plan=spec.training, noise=spec.noise)
        source = data.source(spec.training, c.seed)
        return PreparedStage(
            finish=lambda: StageOutput(loaded.model, loaded.tokenizer_files, folder_meta(c, {"start": folder}, table)),
            module=StageModule(loaded.model, {"hard_labels": (1.0, HardLabels())}),
            source=source,
            plan=settle_plan(spec.training, source, loaded.config.hidden, c),
            validate=task_validation(data, table, c),
            select=task_choice(table),
            watched=WATCHED,
            identity={"data": table.fingerprint, "tokenizer": data.vocabulary_sha},
            params={"student.layers": loaded.config.depth, "student.hidden": loaded.config.hidden},
        )
