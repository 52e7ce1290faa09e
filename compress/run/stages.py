"""The stages of a run: each is prepared, trained, finished and written, or found from before."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compress import registry
from compress.contracts import StageResult
from compress.data.text.tokenizer_files import complete
from compress.errors import ExitCode, Stopped, UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.resolve import resolve as resolve_model
from compress.run import cache, chain
from compress.run.folder import RunFolder
from compress.run.results import STEPS, Made, discard_checkpoints, read_done, work_folder
from compress.run.sources import Sources
from compress.run.teachers import Teachers
from compress.run.train import train_prepared, training_context, training_identity
from compress.stages.shared.stage import Outline, Prepared, StageContext, Workshop, outline_of
from compress.storage import atomic, safe
from compress.storage.signals import StopFlag
from compress.tracking import TrackedRun, open_run
from compress.training import distributed
from compress.training.context import TrainResult
from compress.training.precision import resolve as resolve_precision


class Staging(Sources):
    """The stages of a recipe, in the folder of a run."""

    folder: RunFolder
    stop: StopFlag

    def outline(self, teacher: Outline | None, general: Outline | None) -> Outline | None:
        """What the stages will make, from what the recipe says; UserError for what cannot fit."""
        first = made = outline_of(resolve_model(self.recipe.model)) if self.recipe.model else None
        start = first or (teacher if "teacher" in self.recipe.stages[self.indices[0]].needs() else None)
        chain.check_order(self.recipe, self.indices, None if start is None else start.config)
        done: dict[int, Outline | None] = {}
        for index in self.indices:
            spec = self.recipe.stages[index]
            stage = registry.stage_class(spec.kind)(spec, self._context(spec, Path(), Made(), Teachers()))
            who = chain.tutor(self.recipe, self.indices, index)
            if who == "teacher":
                made = stage.outline(made, teacher, general)
            else:
                other = first if who == "first" else done[who]
                made = stage.outline(made, other, other)
            done[index] = made
        return made

    def _stages(self, log: TrackedRun, teachers: Teachers) -> Made:
        made = self._given()
        for index in self.indices:
            spec, target = self.recipe.stages[index], self._target(index)
            context = self._context(spec, self._work(index), made, self._tutors(index, made, teachers))
            if self._has_own_run(index):
                with self._child(log, context.folder, spec.kind, "stage") as child:
                    result = self._stage(index, spec, context, target, child)
            else:
                result = self._stage(index, spec, context, target, log)
            made = made.after(index, context.folder.name, spec.kind, result)
        return made

    def _has_own_run(self, index: int) -> bool:
        """Whether a stage is told in a run below the recipe's own: in a chain each is."""
        if self.options.chain is not None and len(self.indices) > 1:
            return True
        return index != self.indices[-1] and self.recipe.stages[index].kind != "tokenizer"

    def _tutors(self, index: int, made: Made, teachers: Teachers) -> Teachers:
        """Who teaches this stage: whom the recipe names, or a model of the chain."""
        who = chain.tutor(self.recipe, self.indices, index)
        if who == "teacher":
            return teachers
        folder = self._given().model if who == "first" else made.folders[who]
        if folder is None or chain.same_folder(folder, teachers.task):
            return teachers
        heads = modelfolder.inspect(folder).heads
        return Teachers(folder, self.inputs.get("general_teacher") or (folder if "mlm" in heads else teachers.general))

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
        if not self.whole:
            return None
        index = self.indices[-1]
        taught = self._tutors(index, made, teachers)
        context = self._context(self.last, self._work(index, "-control"), before, taught)
        stage = registry.stage_class(self.last.kind)(self.last, context)
        twin = stage.control(made.last.steps) if made.last is not None and hasattr(stage, "control") else None
        if twin is None:
            return None
        with self._child(log, context.folder, self.last.kind, "control") as child:
            return self._stage(index, twin, context, self.folder.path / "control", child)

    def _stage(self, index: int, spec: Any, context: StageContext, target: Path, log: TrackedRun) -> StageResult:
        """Run one stage into the folder `target`, or find it there from before, or in an earlier run."""
        label = context.folder.name
        if target.exists():
            done = self._done(context, target)
            if done is not None:
                return done
        self._stop_if_asked(label)
        asked = self.options.chain
        key = None if asked is None else cache.key(spec, index, context)
        if key is not None and (taken := self._taken(key, index, context, target, log)) is not None:
            return taken
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
            files, beside = complete(finished.files, str(target)), finished.beside
            modelfolder.save_model(target, finished.model, tokenizer_files=files, meta=finished.meta, beside=beside)
        if key is not None:
            self._remember(key, context, target)
        discard_checkpoints(context.folder)
        return StageResult(target, steps, time.monotonic() - begin, best, start)

    def _done(self, context: StageContext, target: Path) -> StageResult | None:
        """What the stage left in this folder before. Of a chain, None where it is not that any more: what lies there is
        moved aside then. Raises UserError for a damaged one of other runs."""
        label, marked = context.folder.name, read_mark(context.folder)
        reasons = atomic.verify_folder(target)
        if reasons and self.options.chain is None:
            raise UserError(
                "the result of a finished stage is damaged", where=str(target), why=reasons[0],
                do="remove it to run the stage again", code=ExitCode.DATA,
            )  # fmt: skip
        reason = reasons[0] if reasons else None
        if reason is None and marked is not None:
            reason = cache.changed(target, marked["mark"])
            if reason is None and marked["input"] != _input(context):
                reason = "what it was made of is another model now"
        if reason is None:
            self.console.note(f"{label}: done before")
            discard_checkpoints(context.folder)
            return read_done(context.folder, target)
        aside = atomic.set_aside(target)
        self.console.warn(f"{label} is made again: {reason}; what was there is {aside} now")
        return None

    def _taken(self, key: str, index: int, context: StageContext, target: Path, log: TrackedRun) -> StageResult | None:
        """The stage as an earlier run made it; None where it is to be made. Raises UserError where it must have been
        made and was not."""
        label, asked = context.folder.name, self.options.chain
        assert asked is not None
        before = self.begin is not None and index < self.begin
        if not before and (self.begin is not None or not asked.cached):
            return None
        found = cache.find(key, self.console.warn)
        if found is None:
            if before:
                raise UserError(
                    f"{label} was not made before", where=f"--from {asked.begin}",
                    why="no earlier run made it of this recipe, input, seed and version of the program",
                    do=f"leave --from out, or run the stages before it first: --until {label}",
                )  # fmt: skip
            return None
        cache.take(found, target, context.folder)
        self._remember(key, context, target)
        self.console.note(f"{label}: taken from {found.run}")
        log.tags({"compress.taken_from": str(found.work)})
        self.ready.pop(target, None)
        return dataclasses.replace(read_done(context.folder, target), source=found.run)

    def _remember(self, key: str, context: StageContext, target: Path) -> None:
        """Write down what was made of what, for this run when it goes on and for later ones."""
        atomic.write_json(context.folder / cache.MADE, {"mark": cache.mark(target), "input": _input(context)})
        cache.keep(key, target, context.folder, self.console.warn)

    def _train(self, prepared: Prepared, spec: Any, context: StageContext, log: TrackedRun) -> TrainResult:
        team = distributed.current()
        if team is not None:
            log.params({"processes": team.place.world})
            team.announce(self._order(spec, context))
        with self.console.progress(context.folder.name, prepared.total_steps()) as progress:
            told = training_context(
                prepared,
                context,
                observe=None if prepared.diagnosis is None else prepared.diagnosis.observe,
                log=log,
                progress=progress,
                stop=self.stop,
                resume=(context.folder / "checkpoints").is_dir(),
                identity=training_identity(spec, context, prepared),
                team=team,
            )
            return train_prepared(prepared, told)

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
        if self.whole and index == self.indices[-1] and not self._chooses:
            return self.folder.path / ("student" if self.last.kind == "distill" else "model")
        return self._work(index) / "model"

    @property
    def _chooses(self) -> bool:
        """Whether the run leaves the best of its models, in place of the last one."""
        return self.whole and getattr(self.last, "select", "student") == "best"

    def _answers(self, index: int) -> bool:
        """Whether a stage's model does the task: one that was made from text alone does not, whatever head it has."""
        if getattr(self.recipe.stages[index], "level", "task_specific") == "general":
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


def _input(context: StageContext) -> str | None:
    """What a stage starts from, by content."""
    return None if context.model is None else cache.mark(context.model)


def read_mark(work: Path) -> Mapping[str, Any] | None:
    """What was written down of the stage in a work folder when it was made; None of a stage of no chain."""
    return safe.read_json(work / cache.MADE) if (work / cache.MADE).is_file() else None
