"""The river on one page: a recipe's stages, one after the other, then measured and told.

    recipe ─ stages ─ prepare → training loop → finish → model folder ─ measure → table, card, MLflow

A stage whose model folder is there and whole is not run again, so a stopped run goes on where it stopped, within a
stage from its newest valid checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import platform
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

import compress
from compress import registry
from compress.choice import Candidate, best_of, sentences
from compress.console import Console
from compress.contracts import Override, RunOptions, StageResult
from compress.corpora import open_corpus_of, words_read
from compress.data.corpus import Corpus
from compress.data.table import Table
from compress.deployment import deploy, require_writer
from compress.durable import atomic, safe
from compress.durable.lock import run_lock
from compress.durable.signals import StopFlag
from compress.errors import ExitCode, Stopped, UserError
from compress.measure import (
    STAGE,
    CostPlan,
    Measured,
    Subject,
    kind_of,
    measure,
    member_role,
    stage_role,
    taught_by,
)
from compress.modelfolder import folder as modelfolder
from compress.modelnames import resolve as resolve_model
from compress.modelnames import tokenizer_folder
from compress.publish import log_measured, tell
from compress.recipe import Recipe, TeacherRow, load_recipe
from compress.runfolder import RUNS, Request, claim, is_finished, read_record, resume_command
from compress.stages import FINDINGS, Outline, Prepared, StageContext, Workshop, open_table_of, outline_of, task_choice
from compress.teachers import Teachers, is_recipe, joined, named, overrides, teacher_folder
from compress.tracking import Parent, TrackedRun, experiment, open_run, resolve_store
from compress.tracking.view import DEFAULT_QUALITY
from compress.training import distributed
from compress.training.checkpoint import Checkpoints
from compress.training.loop import TrainingContext, train
from compress.training.precision import resolve as resolve_precision
from evaluation.cost.device import describe


@dataclass(frozen=True)
class Made:
    """What the stages so far have made. before: what the last stage started from.  last: what the last stage left.

    figures: stage → what its best validation gave, and what was measured at its end.
    """

    model: Path | None = None
    tokenizer: Path | None = None
    before: Path | None = None
    last: StageResult | None = None
    figures: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)

    def after(self, name: str, kind: str, result: StageResult) -> Made:
        told = {**self.figures, name: result.best} if result.best else self.figures
        if kind == "tokenizer":
            return dataclasses.replace(self, tokenizer=result.folder)
        return dataclasses.replace(self, before=self.model, model=result.folder, last=result, figures=told)


@dataclass(frozen=True)
class RunReport:
    """What a run leaves: its folder, the final model's folder, and what was measured."""

    folder: Path
    model: Path
    measured: Sequence[Measured] = ()
    lines: Sequence[str] = ()
    stages: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    findings: Sequence[Mapping[str, Any]] = ()

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints. stages: the figures that each gave while and after training.  findings: diagnosis."""
        return {
            "folder": str(self.folder),
            "model": str(self.model),
            "models": [m.as_json() for m in self.measured],
            "stages": {name: dict(figures) for name, figures in self.stages.items()},
            "findings": list(self.findings),
            "notes": list(self.lines),
        }


def run_recipe(
    name: str,
    options: RunOptions,
    console: Console,
    *,
    verb: str | None = None,
    inputs: Mapping[str, Path] | None = None,
) -> RunReport | None:
    """Run the stages of a recipe; verb: only those of that kind. None after a dry run.

    inputs: folders given by flags: `tokenizer`, `general_teacher`. Raises UserError for anything wrong with the
    request, Stopped when a signal asked to stop (all is saved, and it says how to go on).
    """
    recipe = load_recipe(name, overrides=options.overrides)
    report = Run(recipe, options, console, verb, {key: input_folder(key, p) for key, p in (inputs or {}).items()}).go()
    if report is not None:
        console.document(report.as_json())
    return report


class Run:
    """One recipe being run, from its request to its table."""

    def __init__(
        self, recipe: Recipe, options: RunOptions, console: Console, verb: str | None, inputs: Mapping[str, Path]
    ) -> None:
        self.recipe, self.options, self.console, self.verb, self.inputs = recipe, options, console, verb, inputs
        self.indices = [i for i, s in enumerate(recipe.stages) if verb is None or s.kind == verb]
        if not self.indices:
            kinds = ", ".join(dict.fromkeys(s.kind for s in recipe.stages))
            raise UserError(f"recipe {recipe.name} has no {verb} stage", why=f"its stages: {kinds}")
        self.last = recipe.stages[self.indices[-1]]
        self.needs = frozenset[str]().union(*(recipe.stages[i].needs() for i in self.indices))
        self.ready: dict[Path, Prepared] = {}
        self.experiment = experiment(options)
        self.method = recipe.method or self.last.kind
        self.parent: Parent | None = None
        self.tags: dict[str, str] = {}

    # --- the run ----------------------------------------------------------------------------------------------

    def go(self) -> RunReport | None:
        if self.options.dry_run:
            self._describe()
            return None
        self.folder = claim(Request(self.recipe, self.verb, self.inputs), self.options)
        with StopFlag() as self.stop:
            try:
                return self._go(self.folder.path)
            except Stopped as stopped:  # of this run or of its teacher's: this run's command continues both
                raise Stopped(stopped.reason, resume_command(self.folder.path)) from None

    def _go(self, path: Path) -> RunReport:
        """What is wrong is found before the folder is made: data first, then models, then what needs both."""
        self._told_where()
        require_writer(self.options.onnx)
        self._open_data()
        teachers = self._teachers()
        read = self._fingerprints(teachers)
        self._prepare_first(teachers)
        with run_lock(path):
            self.folder.begin(read)
            self.folder.record("running", read, self._told_where())
            atomic.write_text(path / "recipe.yaml", self.recipe.dump_yaml())
            atomic.write_json(path / "environment.json", self._environment())
            try:
                report = self._run(teachers)
            except BaseException as error:
                with contextlib.suppress(UserError):  # a full disk must not hide what came before it
                    status = "stopped" if isinstance(error, Stopped) else "failed"
                    self.folder.record(status, read, self._told_where())
                raise
            self.folder.record("finished", read, self._told_where())
        return report

    def _told_where(self) -> str:
        """Store and experiment; UserError for an address that cannot be one."""
        return f"{resolve_store(self.options.tracking_uri).shown} {self.experiment}"

    def _has_store(self) -> bool:
        """Whether the store that earlier runs were told to is still there, as far as that can be seen from here."""
        database = resolve_store(self.options.tracking_uri).database
        return database is None or database.exists()

    def _open_data(self) -> None:
        """Find what is wrong with the data before a folder is made or a step is computed."""
        if "data" in self.needs:
            self.table  # noqa: B018 - opened here, read by the stages
        if "corpus" in self.needs:
            self.corpus  # noqa: B018
        words_read(self.recipe, self.indices)

    def _fingerprints(self, teachers: Teachers) -> dict[str, str]:
        """What the run reads; a run goes on only while it is the same."""
        read = teachers.fingerprints()
        if self.recipe.model:
            read["model"] = modelfolder.fingerprint(resolve_model(self.recipe.model))
        for index in self.indices:
            own = getattr(getattr(self.recipe.stages[index], "student", None), "model", None)
            if own is not None:
                read[f"student of stage {index}"] = modelfolder.fingerprint(resolve_model(own))
        if "table" in self.__dict__:
            read["data"] = self.table.fingerprint
        if "corpus" in self.__dict__:
            read["corpus"] = self.corpus.fingerprint
        return read | words_read(self.recipe, self.indices)

    def outline(self, teacher: Outline | None, general: Outline | None) -> Outline | None:
        """What the stages will make, from what the recipe says; UserError for what cannot fit."""
        made = outline_of(resolve_model(self.recipe.model)) if self.recipe.model else None
        for index in self.indices:
            spec = self.recipe.stages[index]
            stage = registry.stage_class(spec.kind)(spec, self._context(spec, Path(), Made(), Teachers()))
            made = stage.outline(made, teacher, general)
        return made

    def _prepare_first(self, teachers: Teachers) -> None:
        """Prepare the first stage: models, labels, lengths and vocabularies that do not fit are found here."""
        spec = self.recipe.stages[self.indices[0]]
        target = self._target(self.indices[0])
        if not target.exists():
            context = self._context(spec, self._work(self.indices[0]), self._given(), teachers)
            self.ready[target] = self._prepare(spec, context)

    def _stop_if_asked(self, before: str) -> None:
        if self.stop.requested:
            raise Stopped(f"stopped by {self.stop.requested} before {before}")

    def _run(self, teachers: Teachers) -> RunReport:
        path = self.folder.path
        with open_run(
            path,
            experiment=self.experiment,
            name=path.name,
            method=self.method,
            role="student" if "teacher" in self.needs else "teacher",
            parent=self.parent,
            tags={"compress.recipe": self.recipe.name, "compress.recipe_sha": self.recipe.hash(), **self.tags},
            store=resolve_store(self.options.tracking_uri),
            quality=self._quality(),
            warn=self.console.warn,
        ) as log:
            log.params({"method": self.method, "recipe": self.recipe.name, "seed": self.recipe.seed})
            log.artifact(path / "recipe.yaml")
            log.artifact(path / "environment.json")
            if "table" in self.__dict__:
                log.dataset(f"{self.table.name}/train", self.table.fingerprint, self.table.name, "training")
            made = self._stages(log, teachers)
            control = self._control(log, teachers, made)
            self._stop_if_asked("measuring")
            if self._has_task():
                report = self._measured(log, teachers, made, control)
            else:
                report = RunReport(path, made.model or made.tokenizer or path)
            found = [row for index in self.indices for row in read_findings(self._work(index))]
            report = dataclasses.replace(report, stages=made.figures, findings=found)
        tell(self.console, report, log)
        return report

    def _environment(self) -> dict[str, Any]:
        """Device, threads and package versions, as an artifact beside the recipe."""
        found = [d.metadata for d in metadata.distributions()]  # read once each: it is a parsed mail header
        installed = {m["Name"]: m["Version"] for m in found if m["Name"]}
        python = platform.python_version()
        return {**describe(self.options.device), "python": python, "packages": dict(sorted(installed.items()))}

    def _has_task(self) -> bool:
        return self.last.kind not in ("tokenizer", "pretrain") and getattr(self.last, "level", "task") == "task"

    def workplace(self, place: int, folder: Path) -> StageContext:
        """What the recipe's stage at `place` is given before any other has run; a teacher that is a recipe is made."""
        self._open_data()
        return self._context(self.recipe.stages[place], folder, self._given(), self._teachers())

    # --- stages -----------------------------------------------------------------------------------------------

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

    def _quality(self) -> str:
        """The figure on the quality axis of the page's charts: the main metric of the task, where the run has one."""
        return f"quality/{task_choice(self.table)[0]}" if "table" in self.__dict__ else DEFAULT_QUALITY

    # --- data and teachers ------------------------------------------------------------------------------------

    @cached_property
    def table(self) -> Table:
        teacher = None
        rows = self.recipe.taught_by
        if rows and not is_recipe(rows[self.recipe.lead].model):
            teacher = modelfolder.inspect(teacher_folder(rows[self.recipe.lead].model))
        table = open_table_of(self.recipe, teacher)
        for note in table.notes:
            self.console.note(note)
        return table

    @cached_property
    def corpus(self) -> Corpus:
        corpus = open_corpus_of(self.recipe, lambda: self.table)
        for note in corpus.notes:
            self.console.note(note)
        return corpus

    def _teachers(self) -> Teachers:
        """Whoever teaches, found or made, and fitting together."""
        if "teacher" not in self.needs:
            self.outline(None, None)
            return Teachers()
        rows = self._teacher_rows()
        made = [self._teacher(row, lead=place == self.recipe.lead) for place, row in enumerate(rows)]
        return joined(self.recipe, made)

    def _teacher(self, row: TeacherRow, *, lead: bool) -> Teachers:
        """A folder as it is; a teacher recipe runs once and is found by its content later."""
        recipe = self._teacher_recipe(row)
        if recipe is None:
            teachers = named(self.recipe, row.model, self.inputs, lead=lead)
            if lead:
                self.outline(*teachers.outlines())
            return teachers
        run = Run(recipe, self.options, self.console, None, {})
        general = self.inputs.get("general_teacher")
        planned = run.outline(None, None)
        self.outline(planned, planned if general is None else outline_of(general))
        folder = RUNS / "teachers" / f"{recipe.name}-{run.content_hash()[:12]}"
        run.options = dataclasses.replace(self.options, output=folder, resume=folder.exists(), overrides=())
        final = folder / "model"
        if is_finished(folder) and not atomic.verify_folder(final):
            self.console.note(f"teacher: {final}, made before by recipe {recipe.name}")
        else:
            self.console.note(f"teacher: running recipe {recipe.name} once; it is reused from then on")
            run.go()
        pretrained = [
            work_folder(folder, i, "pretrain") / "model" for i, s in enumerate(recipe.stages) if s.kind == "pretrain"
        ]
        told = read_record(folder).get("tracked") == self._told_where() and self._has_store()
        return Teachers(final, general or (pretrained[-1] if pretrained else None), frozenset({0} if told else ()))

    def _teacher_rows(self) -> tuple[TeacherRow, ...]:
        """Who the recipe says teaches."""
        rows = self.recipe.taught_by
        if not rows:
            raise UserError(
                f"recipe {self.recipe.name} needs a teacher", where="--teacher",
                do="name a fine-tuned model's folder, or a teacher recipe such as 'teacher'",
            )  # fmt: skip
        return rows

    def _teacher_recipe(self, row: TeacherRow) -> Recipe | None:
        """The recipe that makes a teacher, on this run's data; None when the teacher is a folder."""
        if not is_recipe(row.model):
            return None
        seed = () if row.seed is None else (Override("seed", row.seed, f"the teacher's seed {row.seed}"),)
        return load_recipe(row.model, overrides=[*overrides(self.recipe, load_recipe(row.model)), *seed])

    def content_hash(self) -> str:
        """sha256 of recipe, data, corpus and this program's version: equal when the result would be equal."""
        parts = [compress.__version__, self.recipe.hash()]
        parts += [self.table.fingerprint] if self.recipe.data else []
        parts += [self.corpus.fingerprint] if self.recipe.corpus else []
        parts += words_read(self.recipe, self.indices).values()
        folders = [self.recipe.model, *(row.model for row in self.recipe.taught_by if not is_recipe(row.model))]
        parts += [modelfolder.fingerprint(resolve_model(name)) for name in folders if name]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()

    # --- measuring --------------------------------------------------------------------------------------------

    def _measured(self, log: TrackedRun, teachers: Teachers, made: Made, control: StageResult | None) -> RunReport:
        evaluation, table = self.recipe.evaluation, self.table
        assert made.model is not None
        assert self.recipe.data is not None
        subjects = self._subjects(teachers, made, control)
        dataset, rows = f"{table.name}/{evaluation.split}", table.split(evaluation.split)
        deploy(
            [s.folder for s in subjects if kind_of(s.role) != "teacher" or len(subjects) == 1],
            rows, dataset, self.recipe.data.max_length,
            asked=self.options.onnx, say=self.console.note, warn=self.console.warn,
        )  # fmt: skip
        measured = measure(
            subjects,
            rows,
            task=table.task,
            dataset=dataset,
            digest=table.fingerprint,
            max_length=self.recipe.data.max_length,
            cost=CostPlan(**evaluation.latency.model_dump(), throughput_rows=evaluation.throughput_rows),
            bootstrap=evaluation.bootstrap,
            held=None if evaluation.split == "validation" else table.splits.get("validation"),
            device=self.options.device,
            precision="bf16" if self.options.precision == "bf16" else "fp32",
            say=self.console.note,
        )
        candidates = self._candidates(made, control)
        lines = log_measured(
            log, self.console, measured, table=table, method=self.method, told=self._roles_told(teachers),
            child=lambda role: self._child(log, self._tracked(role), kind_of(role), kind_of(role)),
            result=best_of(candidates).role if candidates else "student",
            more=sentences(candidates, task_choice(table)[0]) if candidates else (),
        )  # fmt: skip
        model = made.model
        if candidates:
            model = self.folder.path / "model"
            modelfolder.duplicate(best_of(candidates).folder, model)
        return RunReport(self.folder.path, model, measured, lines)

    def _subjects(self, teachers: Teachers, made: Made, control: StageResult | None) -> list[Subject]:
        """What is measured: who taught, what stages made on the way, the result, and its control."""
        assert made.model is not None
        name, trained = self.folder.path.name, self._trained
        if teachers.task is None:
            subjects = [Subject(name, made.model, "teacher")]
        else:
            student = f"{trained} + distillation" if trained else name
            subjects = [*taught_by(teachers.task, teachers.ensemble), Subject(student, made.model, "student")]
        for told, index in self._milestones().items():
            subjects.insert(-1, Subject(told, self._target(index), stage_role(index)))
        if control is not None:
            twin = Subject(f"{trained} alone" if trained else "control", control.folder, "control")
            subjects.insert(len(subjects) - 1 if trained else len(subjects), twin)
        return subjects

    def _milestones(self) -> dict[str, int]:
        """Name → place of the stages on the way whose models are measured."""
        between = [i for i in self.indices[:-1] if self.recipe.stages[i].milestone is not None and self._answers(i)]
        many = len(between) > 1
        return {
            f"{self.recipe.stages[i].milestone}{f' {place}' if many else ''}": i for place, i in enumerate(between, 1)
        }

    @property
    def _trained(self) -> str | None:
        """What the result of a last stage is called that trains on what a stage before it made."""
        named = [self.recipe.stages[i].trained for i in self.indices[:-1]]
        return next((name for name in reversed(named) if name is not None), None)

    @property
    def _chooses(self) -> bool:
        """Whether the run leaves the best of its models, in place of the last one."""
        return getattr(self.last, "result", "student") == "best"

    def _candidates(self, made: Made, control: StageResult | None) -> list[Candidate]:
        """What the run's result is chosen from, what was there first before what was trained; none where nothing is."""
        if not self._chooses or made.last is None:
            return []
        metric, trained, found = task_choice(self.table)[0], self._trained, []
        first = next(((name, i) for name, i in self._milestones().items() if self._target(i) == made.before), None)
        if first is not None and metric in made.last.start:
            found.append(Candidate(first[0], stage_role(first[1]), self._target(first[1]), made.last.start[metric]))
        if control is not None:
            name = f"{trained} alone" if trained else "control"
            found.append(Candidate(name, "control", control.folder, control.best[metric]))
        name = f"{trained} + distillation" if trained else "student"
        return [*found, Candidate(name, "student", made.last.folder, made.last.best[metric])]

    def _tracked(self, role: str) -> Path:
        """Whose journal a model that is not the run's own result writes to: the control goes on in its stage's."""
        if role == "control":
            return self._work(self.indices[-1], "-control")
        if role == "student":  # measured beside what the run leaves; its training is in the run's own journal
            return self.folder.path / "distilled"
        if role.startswith(STAGE):
            return self._work(int(role.removeprefix(STAGE)))
        return self.folder.path / role.replace("teacher", "reference")

    @staticmethod
    def _roles_told(teachers: Teachers) -> set[str]:
        """Of the subjects: those that a run of their own has told."""
        if teachers.ensemble is None:
            return {"teacher"} if teachers.told else set()
        return {member_role(place) for place in teachers.told}

    # --- dry run ----------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Print the resolved recipe, the data's sizes and the plan; run nothing, write nothing."""
        self._open_data()
        lines = []
        if "table" in self.__dict__:
            sizes = ", ".join(f"{len(rows):,} {split}" for split, rows in self.table.splits.items())
            lines.append(f"data: {self.table.name}: {sizes}; labels: {', '.join(self.table.label_names)}")
        if "corpus" in self.__dict__:
            lines.append(f"corpus: {self.corpus.name}: {self.corpus.sizes}")
        lines += self._describe_teacher()
        for number, index in enumerate(self.indices, 1):
            spec = self.recipe.stages[index]
            context = self._context(spec, Path(), Made(), Teachers())
            lines += [f"stage {number}: {line}" for line in registry.stage_class(spec.kind)(spec, context).plan()]
        self.console.result(self.recipe.dump_yaml().rstrip())
        for line in lines:
            self.console.result(line)
        self.console.document({"recipe": self.recipe.model_dump(mode="json"), "plan": lines})

    def _describe_teacher(self) -> list[str]:
        """Who would teach; what does not fit is found as in a real run, as far as the teachers are there."""
        if "teacher" not in self.needs:
            self.outline(None, None)
            return []
        lines, there = [], []
        for place, row in enumerate(self._teacher_rows()):
            recipe, lead = self._teacher_recipe(row), place == self.recipe.lead
            if recipe is None:
                there.append(named(self.recipe, row.model, self.inputs, lead=lead))
                outlines = there[-1].outlines()
            else:
                outlines = (Run(recipe, self.options, self.console, None, {}).outline(None, None),) * 2
            if lead:
                self.outline(*outlines)
            seed = "" if row.seed is None else f", seed {row.seed}"
            lines.append(f"teacher: {'' if recipe is None else 'recipe '}{row.model}{seed}")
        if len(there) == len(lines) and (ensemble := joined(self.recipe, there).ensemble) is not None:
            lines = [ensemble.sentence()]
        return lines


STEPS = "steps.json"


def training_identity(spec: Any, context: StageContext, prepared: Prepared) -> dict[str, str]:
    """What must be the same for a checkpoint to be continued, and in all processes that train together."""
    stage = hashlib.sha256(json.dumps(spec.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()
    return {"stage": stage, "seed": str(context.seed), **prepared.identity}


def input_folder(name: str, path: Path) -> Path:
    """The folder that a flag means."""
    return tokenizer_folder(path) if name == "tokenizer" else resolve_model(str(path))


def work_folder(run: Path, index: int, name: str) -> Path:
    """Where a stage of the run in `run` keeps its checkpoints and, unless it is the last, its model."""
    return run / "stages" / f"{index}-{name}"


def discard_checkpoints(folder: Path) -> None:
    """Remove those of a stage whose model is written: they are many times its size."""
    Checkpoints(folder / "checkpoints", keep=1).discard()
    atomic.clean(folder / "checkpoints")


def read_findings(folder: Path) -> list[dict[str, Any]]:
    """What the diagnosis of the stage in `folder` found, a row each."""
    if not (folder / FINDINGS).is_file():
        return []
    table = safe.read_json(folder / FINDINGS, 1 << 20)
    return [{"stage": folder.name, **dict(zip(table["columns"], row, strict=True))} for row in table["data"]]


def read_done(folder: Path, target: Path) -> StageResult:
    """Of a stage that was done before, in no seconds."""
    told = safe.read_json(folder / STEPS, 1 << 16)
    return StageResult(target, int(told["steps"]), 0.0, told["figures"], told.get("start", {}))
