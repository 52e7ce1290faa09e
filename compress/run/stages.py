"""Runs the stages: each is prepared, trained, finished and written, or reused from before."""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from compress.console import Console
from compress.contracts import CONTROL, StageResult, StageSpec, TrainingPlan
from compress.data.text.tokenizer_files import complete
from compress.encoder.config.encoder import HeadConfig
from compress.encoder.modules.model import Model
from compress.errors import ExitCode, UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import FolderMeta
from compress.modelfolder.resolve import resolve
from compress.modelfolder.sentence_files import prompt_files, sentence_files
from compress.modelfolder.sentence_head import EMBEDDING
from compress.modelfolder.sentence_pooling import MODULES
from compress.report.rows import title
from compress.run import cache, chain
from compress.run.announced import announce_stage
from compress.run.contexts import Contexts
from compress.run.journal import Journal
from compress.run.results import LEARNING_RATE, STEPS, ChainState, discard_checkpoints, read_done, work_folder
from compress.run.selection import Selection
from compress.run.teachers import Teachers
from compress.run.train import build_training_context, build_training_identity, train_prepared
from compress.stages.shared.stage import FINDING_COLUMNS, FINDINGS, PreparedStage, StageContext
from compress.storage import atomic, safe
from compress.tracking import TrackedRun
from compress.training import distributed
from compress.training.context import TrainResult
from compress.training.length import describe_unfinished

UNFINISHED = "unfinished_training"
"""The finding of a training that ended too early."""
TRAIN_LONGER = "train for more steps or at a higher learning rate"


class Stages:
    """The stages of a recipe, one after the other, in the folder of a run."""

    def __init__(
        self, selection: Selection, contexts: Contexts, journal: Journal, folder: Path, console: Console
    ) -> None:
        self.selection, self.contexts, self.journal = selection, contexts, journal
        self.folder, self.console = folder, console
        self.ready: dict[Path, PreparedStage] = {}
        """Folder of a stage's model → the stage as it was prepared ahead of its turn."""

    # --- all of them ------------------------------------------------------------------------------------------

    def prepare_first(self, teachers: Teachers) -> None:
        """Prepare the first stage ahead of the run: models, labels, lengths and vocabularies that do not fit raise
        UserError before the folder is made."""
        index, chained = self.selection.indices[0], self.selection.chain
        spec, target = self.selection.first, self.target(index)
        if target.exists():
            return
        made = self.contexts.get_start()
        context = self.contexts.of(spec, self.work(index), made, self._teachers_of(index, made, teachers))
        if chained is not None and chained.cached and self.selection.begin != index:
            key = cache.key(spec, index, context)
            if cache.find(key, lambda reason: None) is not None:
                return
        self.ready[target] = self._prepared(spec, context)

    def run(self, log: TrackedRun, teachers: Teachers) -> ChainState:
        """All of them; returns what they made."""
        made = self.contexts.get_start()
        for index in self.selection.indices:
            spec, target = self.selection.stage(index), self.target(index)
            context = self.contexts.of(spec, self.work(index), made, self._teachers_of(index, made, teachers))
            if self.has_own_run(index):
                with self.open_stage_run(log, index) as child:
                    result = self._stage(index, spec, context, target, child)
            else:
                result = self._stage(index, spec, context, target, log)
            made = made.add_stage(index, context.folder.name, spec, result)
        return made

    def train_controls(self, log: TrackedRun, teachers: Teachers, made: ChainState) -> dict[str, StageResult]:
        """Train the controls of the last stage, on hard labels alone, if the recipe asks for them. By their roles."""
        if not self.selection.whole or made.last is None:
            return {}
        index, spec = self.selection.indices[-1], self.selection.last
        before = dataclasses.replace(made, model=made.before)
        taught = self._teachers_of(index, made, teachers)
        context = self.contexts.of(spec, self.work(index, f"-{CONTROL}"), before, taught)
        stage: Any = self.contexts.stage(spec, context)
        controls = stage.controls(made.last.steps) if hasattr(stage, "controls") else {}
        found = {}
        for role, control in controls.items():
            context = self.contexts.of(spec, self.work(index, f"-{role}"), before, taught)
            with self.journal.child(log, context.folder, method=spec.kind, role=CONTROL) as child:
                found[role] = self._stage(index, control, context, self.folder / role, child)
        return found

    # --- where they are ---------------------------------------------------------------------------------------

    def work(self, index: int, suffix: str = "") -> Path:
        """The work folder of a stage."""
        return work_folder(self.folder, index, self.selection.stage(index).kind + suffix)

    def target(self, index: int) -> Path:
        """Where a stage's model goes: the last one's is the run's result, unless that is selected at the end."""
        selection = self.selection
        if selection.whole and index == selection.indices[-1] and not selection.selects_best:
            return self.folder / selection.last.result_name
        return self.work(index) / "model"

    def open_stage_run(self, log: TrackedRun, index: int) -> TrackedRun:
        """The tracked run of a stage, begun or continued."""
        return self.journal.child(log, self.work(index), method=self.selection.stage(index).kind, role="stage")

    def has_own_run(self, index: int) -> bool:
        """Whether a stage has a tracked run below the recipe's own: in a chain each has."""
        if self.selection.is_chain and len(self.selection.indices) > 1:
            return True
        return index != self.selection.indices[-1] and self.selection.stage(index).makes == "model"

    def answers(self, index: int) -> bool:
        """Whether the model of a stage that has run answers the task."""
        return self.selection.stage(index).answers_task() and "task" in modelfolder.inspect(self.target(index)).heads

    def _teachers_of(self, index: int, made: ChainState, teachers: Teachers) -> Teachers:
        """Who teaches this stage: whom the recipe names, or a model of the chain."""
        who = chain.find_teacher_source(self.selection.recipe, self.selection.indices, index)
        if who == "teacher":
            return teachers
        folder = self.contexts.get_start().model if who == "first" else made.folders[who]
        if folder is None or chain.same_folder(folder, teachers.task):
            return teachers
        heads = modelfolder.inspect(folder).heads
        general = self.contexts.inputs.get("general_teacher")
        return Teachers(folder, general or (folder if "mlm" in heads else teachers.general))

    # --- one of them ------------------------------------------------------------------------------------------

    def _stage(self, index: int, spec: StageSpec, context: StageContext, target: Path, log: TrackedRun) -> StageResult:
        """Run one stage into the folder `target`, or find it there from before, or in an earlier run."""
        label = context.folder.name
        if target.exists():
            done = self._done(context, target)
            if done is not None:
                return done
        self.contexts.stop_if_requested(label)
        key = None if self.selection.chain is None else cache.key(spec, index, context)
        if key is not None and (taken := self._taken(key, index, context, target, log)) is not None:
            return taken
        begin = time.monotonic()
        prepared = self.ready.pop(target, None) or self._prepared(spec, context)
        steps, best, start = 0, {}, {}
        chosen = _chosen(spec, prepared)
        log.params({**prepared.params, **({} if prepared.plan is None else _plan_params(prepared.plan))})
        if prepared.told is not None:
            prepared.told(log)
        if prepared.module is not None:
            if prepared.opening is not None:
                opening = prepared.opening()
                log.metrics({f"{spec.kind}/{name}": value for name, value in opening.items()})
            if prepared.diagnosis is not None:
                prepared.diagnosis.begin(log)
            result = self._train(prepared, spec, context, log)
            if result.end:
                self.console.note(f"{label}: {result.end}")
                log.tags({"compress.end": result.end})
            self._keep_findings(prepared, context, result, log)
            steps, best = result.steps, dict(result.best or result.last)
            start = next((row for row in result.history if row["step"] == 0), {})
            if prepared.select is not None and {prepared.select[0]} <= best.keys() & start.keys():
                name = prepared.select[0]
                self.console.note(
                    f"{label}: {title(name)} {best[name]:.3f} in validation, {start[name]:.3f} before training"
                )
            if prepared.closing is not None:
                with torch.no_grad():
                    closing = prepared.closing(prepared.module, result.best_step or steps)
                log.metrics({f"{spec.kind}/{name}": value for name, value in closing.items()})
                best |= closing
        atomic.write_json(
            context.folder / STEPS,
            {"steps": steps, "figures": best, "start": start, "rows": dict(prepared.rows), **chosen},
        )
        finished = prepared.finish()
        if finished.model is None:
            with atomic.new_folder(target) as temp:
                for name, data in finished.files.items():
                    atomic.write_bytes(temp / name, data)
        else:
            files = complete(finished.files, str(target))
            config, heads = finished.model.config, finished.model.head_configs
            carried = _sentence_files(spec, context, config.hidden, config.max_positions, heads)
            beside = {**carried, **finished.beside}
            meta = finished.meta and _with_chosen(finished.meta, index, chosen)
            modelfolder.save_model(target, finished.model, tokenizer_files=files, meta=meta, beside=beside)
        if key is not None:
            self._remember(key, context, target)
        discard_checkpoints(context.folder)
        return StageResult(target, steps, time.monotonic() - begin, best, start)

    def _prepared(self, spec: StageSpec, context: StageContext) -> PreparedStage:
        """The stage, prepared. Raises UserError for what does not fit, also for modules of sentence-transformers that
        its model could not have."""
        _sentence_files(spec, context)
        prepared = self.contexts.prepare(spec, context)
        student = getattr(prepared.module, "student", None)
        heads = student.head_configs if isinstance(student, Model) else None
        _sentence_files(spec, context, prepared.params.get("student.hidden"), heads=heads)
        return prepared

    def _done(self, context: StageContext, target: Path) -> StageResult | None:
        """What the stage left in this folder before. Of a chain, None where it is not that any more: what lies there is
        moved aside then. Raises UserError for a damaged one of other runs."""
        label, marked = context.folder.name, read_mark(context.folder)
        reasons = atomic.verify_folder(target)
        if reasons and not self.selection.is_chain:
            raise UserError(
                "the result of a finished stage is damaged", where=str(target), why=reasons[0],
                do="remove it to run the stage again", code=ExitCode.DATA,
            )  # fmt: skip
        reason = reasons[0] if reasons else None
        if reason is None and marked is not None:
            reason = cache.describe_change(target, marked["mark"])
            if reason is None and marked["input"] != _input(context):
                reason = "its input model has changed"
        if reason is None:
            self.console.note(f"{label}: already done")
            discard_checkpoints(context.folder)
            run = None if marked is None else marked.get("run")
            source = None if run is None else Path(run)
            return dataclasses.replace(read_done(context.folder, target), source=source, resumed=True)
        aside = atomic.set_aside(target)
        self.console.warn(f"{label} is made again: {reason}; the old result was moved to {aside}")
        return None

    def _taken(self, key: str, index: int, context: StageContext, target: Path, log: TrackedRun) -> StageResult | None:
        """The stage as an earlier run made it; None where it is to be made. Raises UserError where it must have been
        made and was not."""
        label, begin, options = context.folder.name, self.selection.begin, self.selection.chain
        assert options is not None
        before = begin is not None and index < begin
        if not before and (begin is not None or not options.cached):
            return None
        found = cache.find(key, self.console.warn)
        if found is None:
            if before:
                raise UserError(
                    f"no earlier result of {label}", where=f"--from {options.begin}",
                    why="no earlier run has the same recipe, input, seed and program version",
                    do=f"remove --from, or run the stages up to it first: --until {label}",
                )  # fmt: skip
            return None
        cache.take(found, target, context.folder)
        self._remember(key, context, target, found.run)
        self.console.note(f"{label}: reused from {found.run}")
        log.tags({"compress.taken_from": str(found.work)})
        self.ready.pop(target, None)
        return dataclasses.replace(read_done(context.folder, target), source=found.run)

    def _remember(self, key: str, context: StageContext, target: Path, run: Path | None = None) -> None:
        """Write down what was made of what, for this run when it goes on and for later ones. run: the earlier run that
        it was taken from."""
        source = {} if run is None else {"run": str(run)}
        made = {"mark": cache.mark(target), "input": _input(context), **source}
        atomic.write_json(context.folder / cache.MADE, made)
        cache.keep(key, target, context.folder, self.console.warn)

    def _train(self, prepared: PreparedStage, spec: StageSpec, context: StageContext, log: TrackedRun) -> TrainResult:
        team = distributed.current()
        if team is not None:
            log.params({"processes": team.place.world})
            team.broadcast_order(announce_stage(self.selection.recipe, spec, context))
        label = context.folder.name
        with self.console.progress(label, prepared.total_steps()) as progress:
            told = build_training_context(
                prepared,
                context,
                observe=None if prepared.diagnosis is None else prepared.diagnosis.observe,
                log=log,
                progress=progress,
                stop=self.contexts.stop,
                threads=self.contexts.threads,
                say=lambda text: self.console.note(f"{label}: {text}"),
                resume=(context.folder / "checkpoints").is_dir(),
                identity=build_training_identity(spec, context, prepared),
                team=team,
            )
            return train_prepared(prepared, told)

    def _keep_findings(
        self, prepared: PreparedStage, context: StageContext, result: TrainResult, log: TrackedRun
    ) -> None:
        """Write the table of what was found while the stage was trained, with what its validations say at the end."""
        rows = [] if prepared.diagnosis is None else [*prepared.diagnosis.close()]
        text = None
        if prepared.select is not None and not result.stopped:
            text = describe_unfinished(result.history, *prepared.select)
        if text is not None:
            context.say(f"finding: {text}; {TRAIN_LONGER}")
            log.tags({f"compress.finding.{UNFINISHED}": f"{text}; {TRAIN_LONGER}"})
            rows.append([result.steps, UNFINISHED, text, TRAIN_LONGER])
        if rows or prepared.diagnosis is not None:
            log.table(context.folder / FINDINGS, FINDING_COLUMNS, rows)


def _chosen(spec: StageSpec, prepared: PreparedStage) -> dict[str, float]:
    """What was chosen in place of values that the recipe leaves open."""
    if prepared.plan is None or getattr(spec, "training").learning_rate is not None:  # noqa: B009 - not of all stages
        return {}
    return {LEARNING_RATE: prepared.plan.rate}


def _plan_params(plan: TrainingPlan) -> dict[str, Any]:
    return {"training.learning_rate": plan.rate, "training.length": plan.length}


def _with_chosen(meta: FolderMeta, index: int, chosen: Mapping[str, float]) -> FolderMeta:
    """The recipe in the model's folder with the values that were chosen for its stage."""
    if meta.recipe is None or not chosen:
        return meta
    resolved = copy.deepcopy(meta.recipe.resolved)
    resolved["stages"][index]["training"].update(chosen)
    return meta.model_copy(update={"recipe": meta.recipe.model_copy(update={"resolved": resolved})})


def _parent(spec: StageSpec, context: StageContext) -> Path | None:
    """The folder of the model that a stage's model is made of; None where it begins with random weights."""
    start = spec.starts_from()
    if start == "random" or spec.makes != "model":
        return None
    if start == "checkpoint":
        named = spec.checkpoint()
        return None if named is None else resolve(named)
    teacher = context.general_teacher if getattr(spec, "level", None) == "general" else context.teacher
    return context.model or teacher if start == "input" else teacher


def _sentence_files(
    spec: StageSpec,
    context: StageContext,
    hidden: int | None = None,
    positions: int | None = None,
    heads: Mapping[str, HeadConfig] | None = None,
) -> dict[str, bytes]:
    """What turns a text into a vector, as in the folder that a stage's model is made of. Nothing where the model is
    for another task and that folder's was not: sentence-transformers would load a classifier as an embedding model.

    hidden, positions, heads: the model's, None where they are not known yet. Raises UserError for what it could not
    have.
    """
    folder = _parent(spec, context)
    if folder is None or not (folder / MODULES).is_file():
        return {}
    info = modelfolder.inspect(folder)
    if _has_other_task(heads or {}) and not _has_other_task(info.heads):
        return {}
    own, parent = (heads or {}).get("task"), info.heads.get("task")
    if own is not None and parent is not None:
        narrower = bool(own.denses) and hidden not in (None, info.config.hidden)
        if narrower or (own.denses, own.truncate) != (parent.denses, parent.truncate):  # the files are of other modules
            return prompt_files(folder, cut=False)
    if spec.own_pooling:
        return prompt_files(folder, cut=False)
    return sentence_files(folder, info.config, hidden=hidden, positions=positions)


def _has_other_task(heads: Mapping[str, HeadConfig]) -> bool:
    """Whether a model has a task other than the vector of a text."""
    return "task" in heads and heads["task"].kind != EMBEDDING


def _input(context: StageContext) -> str | None:
    """What a stage starts from, by content."""
    return None if context.model is None else cache.mark(context.model)


def read_mark(work: Path) -> Mapping[str, Any] | None:
    """What was written down of the stage in a work folder when it was made; None of a stage of no chain."""
    return safe.read_json(work / cache.MADE) if (work / cache.MADE).is_file() else None
