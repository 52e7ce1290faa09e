"""The stages of a run: each is prepared, trained, finished and written, or found from before."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import torch

from compress import registry
from compress.contracts import StageResult
from compress.durable import atomic
from compress.durable.signals import StopFlag
from compress.errors import ExitCode, Stopped, UserError
from compress.modelfolder import folder as modelfolder
from compress.modelnames import resolve as resolve_model
from compress.pipeline.made import STEPS, Made, discard_checkpoints, read_done, work_folder
from compress.pipeline.sources import Sources
from compress.runfolder import RunFolder
from compress.stages import Outline, Prepared, StageContext, Workshop, outline_of
from compress.teachers import Teachers
from compress.tracking import TrackedRun, open_run
from compress.training import distributed
from compress.training.loop import TrainingContext, train
from compress.training.precision import resolve as resolve_precision


class Staging(Sources):
    """The stages of a recipe, in the folder of a run."""

    folder: RunFolder
    stop: StopFlag

    def outline(self, teacher: Outline | None, general: Outline | None) -> Outline | None:
        """What the stages will make, from what the recipe says; UserError for what cannot fit."""
        made = outline_of(resolve_model(self.recipe.model)) if self.recipe.model else None
        for index in self.indices:
            spec = self.recipe.stages[index]
            stage = registry.stage_class(spec.kind)(spec, self._context(spec, Path(), Made(), Teachers()))
            made = stage.outline(made, teacher, general)
        return made

    def _stages(self, log: TrackedRun, teachers: Teachers) -> Made:
        made = self._given()
        for index in self.indices:
            spec, target = self.recipe.stages[index], self._target(index)
            context = self._context(spec, self._work(index), made, teachers)
            if index == self.indices[-1] or spec.kind == "tokenizer":
                result = self._stage(spec, context, target, log)
            else:
                with self._child(log, context.folder, spec.kind, "stage") as child:
                    result = self._stage(spec, context, target, child)
            made = made.after(context.folder.name, spec.kind, result)
        return made

    def _given(self) -> Made:
        """What the first stage starts from: the recipe's model, the tokenizer of a flag."""
        return Made(resolve_model(self.recipe.model) if self.recipe.model else None, self.inputs.get("tokenizer"))

    def _prepare(self, spec: Any, context: StageContext) -> Prepared:
        stage = registry.stage_class(spec.kind)(spec, context)
        for line in stage.plan():
            self.console.note(f"{context.folder.name}: {line}")
        return stage.prepare()

    def _control(self, log: TrackedRun, teachers: Teachers, made: Made) -> StageResult | None:
        """Train the last stage's twin on hard labels alone, if the recipe asks for it."""
        before = dataclasses.replace(made, model=made.before)
        context = self._context(self.last, self._work(self.indices[-1], "-control"), before, teachers)
        stage = registry.stage_class(self.last.kind)(self.last, context)
        twin = stage.control(made.last.steps) if made.last is not None and hasattr(stage, "control") else None
        if twin is None:
            return None
        with self._child(log, context.folder, self.last.kind, "control") as child:
            return self._stage(twin, context, self.folder.path / "control", child)

    def _stage(self, spec: Any, context: StageContext, target: Path, log: TrackedRun) -> StageResult:
        """Run one stage into the folder `target`, or find it there from before."""
        label = context.folder.name
        if target.exists():
            reasons = atomic.verify_folder(target)
            if reasons:
                raise UserError(
                    "the result of a finished stage is damaged", where=str(target), why=reasons[0],
                    do="remove it to run the stage again", code=ExitCode.DATA,
                )  # fmt: skip
            self.console.note(f"{label}: done before")
            discard_checkpoints(context.folder)
            return read_done(context.folder, target)
        self._stop_if_asked(label)
        begin = time.monotonic()
        prepared = self.ready.pop(target, None) or self._prepare(spec, context)
        steps, best, start = 0, {}, {}
        log.params(prepared.params)
        if prepared.told is not None:
            prepared.told(log)
        if prepared.module is not None:
            if prepared.opening is not None:
                opening = prepared.opening()
                log.metrics({f"{spec.kind}/{name}": value for name, value in opening.items()})
            if prepared.diagnosis is not None:
                prepared.diagnosis.begin(log)
            result = self._train(prepared, spec, context, log)
            if prepared.diagnosis is not None:
                prepared.diagnosis.close(context.folder)
            steps, best = result.steps, dict(result.best or result.last)
            start = next((row for row in result.history if row["step"] == 0), {})
            if prepared.closing is not None:
                with torch.no_grad():
                    closing = prepared.closing(prepared.module, result.best_step or steps)
                log.metrics({f"{spec.kind}/{name}": value for name, value in closing.items()})
                best |= closing
        atomic.write_json(context.folder / STEPS, {"steps": steps, "figures": best, "start": start})
        finished = prepared.finish()
        if finished.model is None:
            with atomic.new_folder(target) as temp:
                for name, data in finished.files.items():
                    atomic.write_bytes(temp / name, data)
        else:
            modelfolder.save_model(target, finished.model, tokenizer_files=finished.files, meta=finished.meta)
        discard_checkpoints(context.folder)
        return StageResult(target, steps, time.monotonic() - begin, best, start)

    def _train(self, prepared: Prepared, spec: Any, context: StageContext, log: TrackedRun) -> Any:
        assert prepared.module is not None
        assert prepared.source is not None
        assert prepared.plan is not None
        team = distributed.current()
        if team is not None:
            log.params({"processes": team.place.world})
            team.announce(self._order(spec, context))
        with self.console.progress(context.folder.name, prepared.total_steps()) as progress:
            return train(
                prepared.module,
                prepared.source,
                prepared.plan,
                TrainingContext(
                    folder=context.folder,
                    device=torch.device(context.device),
                    precision=context.precision,
                    seed=context.seed,
                    validate=prepared.validate,
                    select=prepared.select,
                    observe=None if prepared.diagnosis is None else prepared.diagnosis.observe,
                    log=log,
                    progress=progress,
                    stop=self.stop,
                    resume=(context.folder / "checkpoints").is_dir(),
                    identity=training_identity(spec, context, prepared),
                    team=team,
                ),
            )

    def _order(self, spec: Any, context: StageContext) -> dict[str, Any]:
        """What the other processes of a team must know to prepare the same stage."""
        own = ("recipe", "workshop")  # and whatever is called: each process has its own
        told = {f.name: getattr(context, f.name) for f in dataclasses.fields(context) if f.name not in own}
        fields = {name: value for name, value in told.items() if not callable(value)}
        recipe = self.recipe.model_dump(mode="json")
        return {"recipe": recipe, "spec": spec.model_dump(mode="json"), "context": fields}

    def _context(self, spec: Any, folder: Path, made: Made, teachers: Teachers) -> StageContext:
        asked = spec.training.precision if hasattr(spec, "training") else "auto"
        return StageContext(
            recipe=self.recipe,
            folder=folder,
            seed=self.recipe.seed,
            device=self.options.device,
            precision=resolve_precision(asked, torch.device(self.options.device)),
            table=lambda: self.table,
            corpus=lambda: self.corpus,
            model=made.model,
            tokenizer=made.tokenizer,
            teacher=teachers.task,
            general_teacher=teachers.general,
            ensemble=teachers.ensemble,
            say=self.console.note,
            show=self.console.table,
            workshop=Workshop(self.console.progress, lambda: self._stop_if_asked(f"the first step of {folder.name}")),
        )

    def _work(self, index: int, suffix: str = "") -> Path:
        return work_folder(self.folder.path, index, self.recipe.stages[index].kind + suffix)

    def _target(self, index: int) -> Path:
        """Where a stage's model goes: the last one's is the run's result, unless that is chosen at the end."""
        if index == self.indices[-1] and not self._chooses:
            return self.folder.path / ("student" if self.last.kind == "distill" else "model")
        return self._work(index) / "model"

    @property
    def _chooses(self) -> bool:
        """Whether the run leaves the best of its models, in place of the last one."""
        return getattr(self.last, "result", "student") == "best"

    def _answers(self, index: int) -> bool:
        """Whether a stage's model does the task: one that was made from text alone does not, whatever head it has."""
        if getattr(self.recipe.stages[index], "level", "task") == "corpus":
            return False
        return "task" in modelfolder.inspect(self._target(index)).heads

    def _child(self, log: TrackedRun, folder: Path, method: str, role: str) -> TrackedRun:
        return open_run(
            folder,
            experiment=log.experiment,
            name=f"{self.folder.path.name}/{folder.name}",
            method=method,
            role=role,
            parent=log.parent,
            tags={"compress.recipe": self.recipe.name, "compress.parent_run": log.key},
            store=log.store,
            quality=self._quality(),
            warn=self.console.warn,
        )

    def _stop_if_asked(self, before: str) -> None:
        if self.stop.requested:
            raise Stopped(f"stopped by {self.stop.requested} before {before}")


def training_identity(spec: Any, context: StageContext, prepared: Prepared) -> dict[str, str]:
    """What must be the same for a checkpoint to be continued, and in all processes that train together."""
    stage = hashlib.sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    return {"stage": stage, "seed": str(context.seed), **prepared.identity}
