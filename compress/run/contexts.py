"""What a stage is given: built alike for a run, a dry run, the check of an order and the examples of `--check`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch

from compress import registry
from compress.console import Console
from compress.contracts import StageSpec
from compress.contracts.traits import TOKENIZER
from compress.errors import Stopped, UserError
from compress.run import chain
from compress.run.results import ChainState
from compress.run.selection import Selection
from compress.run.sources import Sources
from compress.run.teachers import Teachers
from compress.stages.shared.model_shape import ModelShape, read_shape
from compress.stages.shared.stage import PreparedStage, SharedParts, Stage, StageContext, StageServices
from compress.storage.signals import StopFlag
from compress.training.precision import resolve as resolve_precision


class Contexts:
    """Makes the contexts of a run's stages. inputs: folders given by flags.  threads: as of `TrainingContext`.  stop:
    whether a signal asked to stop.  share: has the parts made that a stage can share among workers; None: the stage
    makes them."""

    def __init__(
        self,
        selection: Selection,
        sources: Sources,
        inputs: Mapping[str, Path],
        device: str,
        console: Console,
        stop: StopFlag,
        threads: int | Literal["auto"] | None = None,
        share: Callable[[StageSpec, StageContext, SharedParts], None] | None = None,
    ) -> None:
        self.selection, self.sources, self.inputs = selection, sources, inputs
        self.device, self.console, self.stop, self.threads = device, console, stop, threads
        self.share = share

    def get_start(self) -> ChainState:
        """What the first stage starts from: the recipe's model, the tokenizer of a flag."""
        return ChainState(self.sources.given_model(), self.inputs.get(TOKENIZER))

    def of(self, spec: StageSpec, folder: Path, made: ChainState, teachers: Teachers) -> StageContext:
        """The context of a stage that works in `folder`, after those that made `made`."""
        recipe, sources = self.selection.recipe, self.sources
        precision = getattr(spec, "training").precision if spec.trains() else "auto"  # noqa: B009 - not of all stages
        first_step = f"the first step of {folder.name}"
        context = StageContext(
            recipe=recipe,
            folder=folder,
            seed=recipe.seed,
            device=self.device,
            precision=resolve_precision(precision, torch.device(self.device)),
            table=lambda: sources.table,
            corpus=lambda: sources.corpus,
            opened=lambda: sources.opened_table,
            model=made.model,
            tokenizer=made.tokenizer,
            teacher=teachers.task,
            general_teacher=teachers.general,
            ensemble=teachers.ensemble,
            say=self.console.note,
            show=self.console.table,
            workshop=StageServices(self.console.progress, lambda: self.stop_if_requested(first_step)),
        )
        if self.share is None:
            return context
        return replace(context, workshop=replace(context.workshop, share=partial(self.share, spec, context)))

    def stage(self, spec: StageSpec, context: StageContext) -> Stage:
        """The stage itself."""
        return registry.stage_class(spec.kind)(spec, context)

    def plan_stage(self, spec: StageSpec, made: ChainState | None = None) -> Stage:
        """A stage that only plans: it has no folder and no teacher yet, and no model but that of `made`."""
        return self.stage(spec, self.of(spec, Path(), made or ChainState(), Teachers()))

    def prepare(self, spec: StageSpec, context: StageContext) -> PreparedStage:
        """Print the stage's plan and prepare it. Raises UserError for what does not fit."""
        stage = self.stage(spec, context)
        for line in stage.plan():
            self.console.note(f"{context.folder.name}: {line}")
        return stage.prepare()

    def plan_shape(self, teacher: ModelShape | None, general: ModelShape | None) -> ModelShape | None:
        """The shape of the model that the stages will make, from the recipe alone. Raises UserError where none fits."""
        selection = self.selection
        model = self.sources.given_model()
        first = made = None if model is None else read_shape(model)
        start = first or (teacher if "teacher" in selection.first.needs() else None)
        chain.check_order(selection.recipe, selection.indices, None if start is None else start.config)
        done: dict[int, ModelShape | None] = {}
        for index in selection.indices:
            stage, spec = self.plan_stage(selection.stage(index)), selection.stage(index)
            _require_embeds(spec, made or teacher)
            who = chain.find_teacher_source(selection.recipe, selection.indices, index)
            if who == "teacher":
                made = stage.plan_shape(made, teacher, general)
            else:
                other = first if who == "first" else done[who]
                made = stage.plan_shape(made, other, other)
            if made is not None and not spec.compresses:  # its head is a new one
                made = replace(made, embeds=False)
            done[index] = made
        return made

    def stop_if_requested(self, before: str) -> None:
        """Raises Stopped where a signal asked for it."""
        if self.stop.requested:
            raise Stopped(f"stopped by {self.stop.requested} before {before}")


def _require_embeds(spec: StageSpec, start: ModelShape | None) -> None:
    """Raise UserError for a model of sentence embeddings in a stage that would do something else with it."""
    if start is None or not start.embeds or spec.embeds or not spec.compresses:
        return
    able = sorted(kind for kind in registry.stages() if registry.stage_spec(kind).embeds)
    raise UserError(
        f"{spec.kind} does not support models of sentence embeddings", where=f"stage {spec.kind}",
        why=f"supported: {', '.join(able)}", do="to compress the encoder alone, remove modules.json from a copy of the "
        "folder, and fine-tune it for a task",
    )  # fmt: skip
