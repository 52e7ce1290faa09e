"""Fine-tune an encoder with a task head on labelled text (Devlin et al. 2019)."""

from __future__ import annotations

import torch
from torch import nn

from compress import registry
from compress.data.batches.randomness import stream
from compress.data.text.tokenizer import check_length
from compress.modelfolder.folder import LoadedModel, inspect
from compress.objectives.hard_labels import Objective as HardLabels
from compress.stages.finetune.flags import TUNINGS
from compress.stages.finetune.spec import ALL, Spec
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.model_shape import ModelShape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import TaskData
from compress.stages.shared.task_head import load_for_task
from compress.stages.shared.training_plan import describe_task_plan, settle_plan
from compress.stages.shared.validation import WATCHED, task_choice, task_validation
from compress.training.module import StageModule


class Stage:
    """Trains a model with a task head on labelled rows."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context
        self.tuning = registry.build(TUNINGS, spec.tune)

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        if start is not None:
            check_length(task_max_length(self.context.recipe), start.positions, where="data.max_length")
            if start.config is not None:
                self.tuning.check(start.config, "tune")
        return start

    def plan(self) -> list[str]:
        told = describe_task_plan(self.spec.training, self.context, self.context.model, self.tuning.rate)
        return [f"fine-tune: {told}{self._told()}"]

    def prepare(self) -> PreparedStage:
        """The model with a task head for the table's labels, its encoded rows, and the labels' loss to train it with.

        Raises UserError where there is no model, where its head answers another task or other labels (unless
        `new_head`), for a tokenizer or lengths that do not fit, and for a `tune` that the encoder does not allow."""
        c, spec = self.context, self.spec
        folder = require_folder(c.model, "a model to start from", "--model", "finetune")
        table = c.table()
        loaded = load_for_task(folder, table, c, dropout=spec.dropout, new_head=spec.new_head)
        data = TaskData.encode(table, loaded, c, plan=spec.training, noise=spec.noise)
        source = data.source(spec.training, c.seed)
        whole = _count(loaded.model)
        trained = self._choose_trained(loaded)
        notes = []
        if spec.tune.kind != "all":
            share = 100 * trained / whole
            notes = [f"fine-tuned {trained:,} parameters ({share:.2g} % of {whole:,}){self._told()}"]
            c.say(notes[0])

        def finish() -> StageOutput:
            self.tuning.finish(loaded.model)
            loaded.model.requires_grad_(True)
            meta = folder_meta(c, {"start": folder}, table, notes=notes)
            return StageOutput(loaded.model, loaded.tokenizer_files, meta)

        return PreparedStage(
            finish=finish,
            module=StageModule(loaded.model, {"hard_labels": (1.0, HardLabels())}),
            source=source,
            plan=settle_plan(spec.training, source, loaded.config.hidden, c, factor=self.tuning.rate),
            validate=task_validation(data, table, c),
            select=task_choice(table),
            watched=WATCHED,
            identity={"data": table.fingerprint, "tokenizer": data.vocabulary_sha},
            params={
                "student.layers": loaded.config.depth,
                "student.hidden": loaded.config.hidden,
                "finetune.tune": spec.tune.kind,
                "finetune.trained_parameters": trained,
                **{f"finetune.{spec.tune.kind}.{key}": value for key, value in spec.tune.options().items()},
            },
            closing=lambda module, step: {"trained_parameters": trained},
        )

    def _choose_trained(self, loaded: LoadedModel) -> int:
        """Freeze what is not trained; returns the number of parameters that are. Raises UserError."""
        self.tuning.check(loaded.config, str(loaded.path))
        seed = int(stream("tuning", self.context.seed).integers(2**63))
        new_pooler = loaded.config.pooler and not inspect(loaded.path).config.pooler
        self.tuning.apply(loaded.model, torch.Generator().manual_seed(seed), new_pooler=new_pooler)
        return _count(loaded.model, trained=True)

    def _told(self) -> str:
        """`, lora (rank 8, …)`, for people; empty where all parameters are trained."""
        row = self.spec.tune
        options = ", ".join(f"{key} {value}" for key, value in row.options().items() if value is not None)
        return "" if row.model_dump() == ALL else f", {row.kind}" + (f" ({options})" if options else "")


def _count(module: nn.Module, *, trained: bool = False) -> int:
    """Parameters of a module, each once; only those that are trained where `trained` says so."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad or not trained)
