"""A run: from a recipe and the options of a command to the measured models."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import metadata
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import ChainOptions, RunOptions, StageSpec, list_set_values
from compress.data.reading.pool import TextVectors
from compress.errors import Stopped, UserError
from compress.modelfolder.push import HubRepository, push_and_print
from compress.modelfolder.resolve import HUB
from compress.predict.text_vectors import make_text_vectors
from compress.recipe import Recipe, TeacherRow
from compress.run import chain
from compress.run.contexts import Contexts
from compress.run.deploy import require_writer
from compress.run.folder import (
    RUNS,
    Request,
    RunFolder,
    claim,
    is_finished,
    is_unfinished,
    note_new_run,
    read_record,
    resumable,
)
from compress.run.journal import Journal
from compress.run.measured import StageMeasurer
from compress.run.publish import tell
from compress.run.results import (
    ChainState,
    RunReport,
    input_folder,
    read_findings,
    with_chosen_values,
    work_folder,
)
from compress.run.selection import Selection
from compress.run.sources import Sources
from compress.run.stages import Stages
from compress.run.teachers import (
    Teachers,
    find_teachers,
    join_teachers,
    require_use_of_general,
    teacher_recipe,
    teacher_rows,
)
from compress.stages.shared.model_shape import ModelShape, read_shape
from compress.stages.shared.stage import SharedParts, StageContext
from compress.storage import atomic
from compress.storage.lock import FolderInUseError, run_lock
from compress.storage.lock import status as lock_status
from compress.storage.sent import find_copy
from compress.storage.signals import StopFlag
from compress.tracking import Parent, TrackedRun
from evaluation.cost.device import describe

WAITING = 1.0
"""Seconds after which a teacher that another command trains is looked at again."""

Share = Callable[[RunOptions, Console, StopFlag, StageSpec, StageContext, SharedParts], None]
"""Has the parts made that are missing, by the workers that the options name, until the flag is up."""


def run_recipe(
    recipe: Recipe,
    options: RunOptions,
    console: Console,
    *,
    verb: str | None = None,
    inputs: Mapping[str, Path] | None = None,
    share: Share | None = None,
) -> RunReport | None:
    """Run the stages of a recipe; verb: only those of that kind. None after a dry run.

    inputs: folders given by flags: `tokenizer`, `general_teacher`.  share: as of `Run`. Raises UserError for anything
    wrong with the request, Stopped when a signal asked to stop (all is saved, and its message has the command that
    resumes).
    """
    given = {key: input_folder(key, p) for key, p in (inputs or {}).items()}
    run = Run(recipe, options, console, verb, given, share=share, params=list_set_values(options.overrides))
    repository = HubRepository.requested(options)
    report = run.go()
    if report is not None:
        push_and_print(console, report.as_json(), report.model, repository)
    return report


class Run:
    """One recipe being run.

    selection: the stages that run.  sources: the data.  contexts: what stages are given.  journal: the tracked runs.

    Constructor: inputs: folders given by flags.  stop: a flag that the caller watches; None: one of its own.  parent,
    tags, name, params: of the tracked run; the name is the folder's where none is given.  measures: whether the models
    are scored and timed at the end; False where the caller evaluates them itself.  sources: those of a run of the same
    recipe that were opened already.  share: has the work done that a stage can share among workers; None: the stage
    does it.
    """

    def __init__(
        self,
        recipe: Recipe,
        options: RunOptions,
        console: Console,
        verb: str | None,
        inputs: Mapping[str, Path],
        *,
        stop: StopFlag | None = None,
        parent: Parent | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        params: Mapping[str, Any] | None = None,
        measures: bool = True,
        sources: Sources | None = None,
        share: Share | None = None,
    ) -> None:
        if (general := inputs.get("general_teacher")) is not None:
            require_use_of_general(recipe, general)
        self.recipe, self.options, self.console, self.verb = recipe, options, console, verb
        self.named, self.inputs = inputs, {name: find_copy(path) for name, path in inputs.items()}
        self.measures, self.params = measures, dict(params or {})
        self.stop = stop or StopFlag()
        self.selection = Selection.of(recipe, verb, options.chain)
        self.sources = sources or Sources(self.selection, console.note, self._make_vectors)
        self.contexts = Contexts(
            self.selection, self.sources, self.inputs, options.device, console, self.stop, options.threads,
            None if share is None else partial(share, options, console, self.stop),
        )  # fmt: skip
        self.journal = Journal(recipe, options, console, self.sources, parent=parent, tags=tags, name=name)

    def go(self) -> RunReport | None:
        """Run it; None after a dry run. Raises what `run_recipe` raises."""
        if self.options.dry_run:
            self._describe()
            return None
        if self.options.resume and not self._has_interrupted_teacher():
            note_new_run(self.options, self.console.note)
        request = Request(self.recipe, self.verb, self.named, self.selection.begin)
        folder = claim(request, self.options, self._has_interrupted_teacher)
        with self.stop, folder.held(), resumable(folder.path):  # this run's command continues its teacher's too
            return self._go(folder)

    def stages(self, folder: Path) -> Stages:
        """The stages, in the folder of a run."""
        return Stages(self.selection, self.contexts, self.journal, folder, self.console)

    def make_measurer(self, stages: Stages) -> StageMeasurer:
        """What measures the models that these stages make."""
        return StageMeasurer(self.selection, self.sources, stages, self.journal, self.options, self.console)

    def _go(self, folder: RunFolder) -> RunReport:
        """What is wrong is found before the folder is made: data first, then models, then what needs both."""
        address, path = self.journal.address(), folder.path
        if caution := self.selection.caution:
            self.console.note(caution)
        exports = any(self.selection.stage(i).writes_onnx for i in self.selection.indices)
        require_writer(exports or self.options.onnx)
        self.sources.open()
        teachers = self.teachers()
        read = teachers.fingerprints() | self.sources.fingerprints()
        stages = self.stages(path)
        stages.prepare_first(teachers)
        with run_lock(path):
            folder.begin(read)
            folder.record("running", read, address)
            atomic.write_text(path / "recipe.yaml", self.recipe.dump_yaml())
            atomic.write_json(path / "environment.json", self._environment())
            try:
                report = self._run(stages, teachers)
            except BaseException as error:
                with contextlib.suppress(UserError):  # a full disk must not hide what came before it
                    status = "stopped" if isinstance(error, Stopped) else "failed"
                    folder.record(status, read, address)
                raise
            last = chain.label(self.recipe, self.selection.indices[-1])
            folder.record("finished" if self.selection.whole else f"done until {last}", read, address)
        return report

    def _run(self, stages: Stages, teachers: Teachers) -> RunReport:
        selection, path = self.selection, stages.folder
        role = "student" if selection.compresses else "teacher"
        with self.journal.open(path, method=selection.method, role=role) as log:
            self._log_request(log, path)
            made = stages.run(log, teachers)
            self._keep_recipe(log, path)
            controls = stages.train_controls(log, teachers, made)
            self.contexts.stop_if_requested("measuring")
            if selection.last.answers_task() and self.measures:
                report = self.make_measurer(stages).measure(log, teachers, made, controls)
            else:
                report = RunReport(path, made.model or made.tokenizer or path)
            found = [row for index in selection.indices for row in read_findings(stages.work(index))]
            found = [*found, *report.findings]
            report = dataclasses.replace(report, stages=made.figures, findings=found, reused=made.reused)
        if selection.is_chain and made.reused:
            self.console.result(self._reused(made))
        tell(self.console, report, log, self.sources.opened_table, for_any_task=not selection.last.answers_task())
        return report

    def _log_request(self, log: TrackedRun, path: Path) -> None:
        own = {"method": self.selection.method, "recipe": self.recipe.name, "seed": self.recipe.seed}
        log.params({**self.params, **own})
        log.artifact(path / "recipe.yaml")
        log.artifact(path / "environment.json")
        table = self.sources.opened_table
        if table is not None:
            log.dataset(f"{table.display_name}/train", table.fingerprint, table.name, "training")

    def _keep_recipe(self, log: TrackedRun, path: Path) -> None:
        """Write the recipe again with the values that were chosen for what it leaves open, so that it repeats them."""
        done = with_chosen_values(self.recipe, path)
        if done != self.recipe:
            atomic.write_text(path / "recipe.yaml", done.dump_yaml())
            log.artifact(path / "recipe.yaml")

    def _reused(self, made: ChainState) -> str:
        """Which stages are of earlier runs, which this run had made before it was resumed, and which it made now."""
        runs = dict.fromkeys(made.reused.values())
        taken = [f"{', '.join(name for name, of in made.reused.items() if of == run)} from {run}" for run in runs]
        labels = [chain.label(self.recipe, i) for i in self.selection.indices]
        parts = {"already done": made.resumed}
        parts["run now"] = tuple(name for name in labels if name not in (*made.reused, *made.resumed))
        others = [f"{what}: {', '.join(names)}" for what, names in parts.items() if names]
        return "; ".join([f"reused: {'; '.join(taken)}", *others])

    def _environment(self) -> dict[str, Any]:
        """Device, threads and package versions, as an artifact beside the recipe."""
        return {**describe(self.options.device), "python": platform.python_version(), "packages": _packages()}

    def workplace(self, place: int, folder: Path) -> StageContext:
        """What the recipe's stage at `place` is given before any other has run; a teacher that is a recipe is made."""
        self.sources.open()
        return self.contexts.of(self.selection.stage(place), folder, self.contexts.get_start(), self.teachers())

    def plan_shape(self, teacher: ModelShape | None, general: ModelShape | None) -> ModelShape | None:
        """The shape of the model that the stages will make: see `Contexts.plan_shape`."""
        return self.contexts.plan_shape(teacher, general)

    # --- teachers -----------------------------------------------------------------------------------------------

    def teachers(self) -> Teachers:
        """Whoever teaches, found or made, and fitting together. Raises UserError for what does not fit."""
        if "teacher" not in self.selection.needs:
            self.plan_shape(None, None)
            return Teachers(general=self.inputs.get("general_teacher"))
        rows = teacher_rows(self.recipe)
        made = [self._teacher(row, lead=place == self.recipe.lead) for place, row in enumerate(rows)]
        return join_teachers(self.recipe, made)

    def _teacher(self, row: TeacherRow, *, lead: bool) -> Teachers:
        """A folder as it is; a teacher recipe runs once and is found by its content later."""
        recipe = teacher_recipe(self.recipe, row)
        if recipe is None:
            teachers = find_teachers(self.recipe, row.model, self.inputs, lead=lead)
            if lead:
                self.plan_shape(*teachers.read_shapes())
            return teachers
        run = Run(recipe, self.options, self.console, None, {})
        general = self.inputs.get("general_teacher")
        planned = run.plan_shape(None, None)
        self.plan_shape(planned, planned if general is None else read_shape(general))
        folder = run.teacher_folder()
        final = folder / "model"
        self._make_teacher(recipe, folder, run.sources)
        pretrained = [work_folder(folder, i, s.kind) / "model" for i, s in enumerate(recipe.stages) if s.pretrains]
        told = read_record(folder).get("tracked") == self.journal.address() and self.journal.has_store()
        return Teachers(final, general or (pretrained[-1] if pretrained else None), frozenset({0} if told else ()))

    def _make_teacher(self, recipe: Recipe, folder: Path, sources: Sources) -> None:
        """Run a teacher recipe in its folder, unless that was done; another command that does it now is waited for."""
        while True:
            self._wait_for_teacher(folder)
            if is_finished(folder) and not atomic.verify_folder(folder / "model"):
                self.console.note(f"teacher: {folder / 'model'}, from an earlier run of recipe {recipe.name}")
                return
            once = f"running recipe {recipe.name} once; later runs reuse the model"
            again = f"resuming the interrupted run of recipe {recipe.name} in {folder}"
            self.console.note(f"teacher: {again if is_unfinished(folder) else once}")
            whole = None if self.options.chain is None else ChainOptions(cached=self.options.chain.cached)
            options = dataclasses.replace(
                self.options, output=folder, resume=folder.exists(), overrides=(), chain=whole
            )
            try:
                Run(recipe, options, self.console, None, {}, sources=sources).go()
                return
            except FolderInUseError:  # another command that started at the same time has begun
                time.sleep(WAITING)

    def _wait_for_teacher(self, folder: Path) -> None:
        """Until no other process trains it. Raises Stopped where a signal asked for it."""
        noted = False
        while (found := lock_status(folder)).state == "running":
            if not noted:
                who = str(found.holder or "another process")
                self.console.note(f"teacher: waiting for {who}, which is training it in {folder}")
                noted = True
            self.contexts.stop_if_requested("the teacher was trained")
            time.sleep(WAITING)

    def _make_vectors(self) -> TextVectors:
        """Of the teacher, a recipe that makes it run first; else of the model that is compressed."""
        if self.options.dry_run and any(teacher_recipe(self.recipe, row) for row in self.recipe.taught_by):
            raise UserError(
                "the pool cannot be read by a teacher that does not exist yet", where="--pool-by vectors",
                do="name the teacher's folder with --teacher, or remove --dry-run",
            )  # fmt: skip
        folder = (self.teachers().task if self.recipe.taught_by else None) or self.sources.given_model()
        if folder is None:
            raise UserError(
                "there is no model whose vectors could be compared", where="--pool-by vectors",
                do="add --teacher FOLDER, or use --pool-by words",
            )  # fmt: skip
        stop = lambda: self.contexts.stop_if_requested("the pool was read")  # noqa: E731
        return make_text_vectors(folder, self.options.device, self.console.progress, stop)

    def teacher_folder(self) -> Path:
        """Where this run works when its model is to teach another: one folder for all runs that make an equal model."""
        return RUNS / "teachers" / f"{self.recipe.name}-{self.sources.content_hash()[:12]}"

    def _has_interrupted_teacher(self) -> bool:
        """Whether a teacher recipe of this run was started and is not finished."""
        if "teacher" not in self.selection.needs:
            return False
        recipes = [teacher_recipe(self.recipe, row) for row in teacher_rows(self.recipe)]
        runs = [Run(recipe, self.options, self.console, None, {}) for recipe in recipes if recipe is not None]
        return any(is_unfinished(run.teacher_folder()) for run in runs)

    # --- dry run ----------------------------------------------------------------------------------------------

    def _describe(self) -> None:
        """Print the data's sizes and the plan, and the recipe where that was requested; run nothing, write nothing."""
        self.sources.open()
        table, corpus, lines = self.sources.opened_table, self.sources.opened_corpus, []
        if table is not None:
            lines.append(f"data: {table.summary}")
        if corpus is not None:
            lines.append(f"corpus: {corpus.name}: {corpus.sizes}")
        lines += self._describe_teacher()
        for place, index in enumerate(self.selection.indices):
            given = self.contexts.get_start() if place == 0 else ChainState()
            stage = self.contexts.plan_stage(self.selection.stage(index), given)
            lines += [f"{chain.label(self.recipe, index)}: {line}" for line in stage.plan()]
        lines += [f"push: {HUB}{self.options.push}"] if self.options.push else []
        for line in lines:
            self.console.result(line)
        if self.options.print_recipe:
            self.console.result(f"\n{self.recipe.dump_yaml().rstrip()}")
        self.console.document({"recipe": self.recipe.model_dump(mode="json"), "plan": lines})

    def _describe_teacher(self) -> list[str]:
        """Who would teach; what does not fit is found as in a real run, as far as the teachers are there."""
        if "teacher" not in self.selection.needs:
            self.plan_shape(None, None)
            data = self.recipe.data
            columns = data.teacher_columns if data is not None and self.recipe.has_column_teacher else None
            return [] if columns is None else [f"teacher: columns {', '.join(columns)}"]
        lines, there = [], []
        for place, row in enumerate(teacher_rows(self.recipe)):
            recipe, lead = teacher_recipe(self.recipe, row), place == self.recipe.lead
            if recipe is None:
                there.append(find_teachers(self.recipe, row.model, self.inputs, lead=lead))
                shapes = there[-1].read_shapes()
            else:
                shapes = (Run(recipe, self.options, self.console, None, {}).plan_shape(None, None),) * 2
            if lead:
                self.plan_shape(*shapes)
            seed = "" if row.seed is None else f", seed {row.seed}"
            lines.append(f"teacher: {'' if recipe is None else 'recipe '}{row.model}{seed}")
        if len(there) == len(lines) and (ensemble := join_teachers(self.recipe, there).ensemble) is not None:
            lines = [ensemble.sentence()]
        return lines


@cache  # some 150 mail headers to parse; what is installed does not change while a process runs
def _packages() -> Mapping[str, str]:
    """Name → version of what is installed."""
    found = [d.metadata for d in metadata.distributions()]
    return dict(sorted((m["Name"], m["Version"]) for m in found if m["Name"]))
