"""A run on one page: from a recipe and what a person asked for to the table."""

from __future__ import annotations

import contextlib
import dataclasses
import platform
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from compress import registry
from compress.console import Console
from compress.contracts import RunOptions
from compress.errors import Stopped, UserError
from compress.recipe import TeacherRow, load_recipe
from compress.run import cache, chain
from compress.run.deploy import require_writer
from compress.run.folder import RUNS, Request, claim, is_finished, read_record, resume_command
from compress.run.measured import Measuring
from compress.run.publish import tell
from compress.run.results import Made, RunReport, input_folder, read_findings, work_folder
from compress.run.teachers import Teachers, joined, named
from compress.stages.shared.stage import StageContext, outline_of
from compress.storage import atomic
from compress.storage.lock import run_lock
from compress.storage.signals import StopFlag
from compress.tracking import open_run, resolve_store
from evaluation.cost.device import describe


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


class Run(Measuring):
    """One recipe being run, from its request to its table."""

    def go(self) -> RunReport | None:
        if self.options.dry_run:
            self._describe()
            return None
        self.folder = claim(Request(self.recipe, self.verb, self.inputs, self.begin), self.options)
        with StopFlag() as self.stop:
            try:
                return self._go(self.folder.path)
            except Stopped as stopped:  # of this run or of its teacher's: this run's command continues both
                raise Stopped(stopped.reason, resume_command(self.folder.path)) from None

    def _go(self, path: Path) -> RunReport:
        """What is wrong is found before the folder is made: data first, then models, then what needs both."""
        self._told_where()
        if self.recipe.experimental:
            self.console.note(f"the recipe {self.recipe.name} is experimental: no measurement has shown a gain yet")
        exports = any(self.recipe.stages[i].writes_onnx for i in self.indices)
        require_writer(exports or self.options.onnx)
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
            status = "finished" if self.whole else f"done until {chain.label(self.recipe, self.indices[-1])}"
            self.folder.record(status, read, self._told_where())
        return report

    def _prepare_first(self, teachers: Teachers) -> None:
        """Prepare the first stage: models, labels, lengths and vocabularies that do not fit are found here."""
        spec = self.recipe.stages[self.indices[0]]
        target = self._target(self.indices[0])
        if target.exists():
            return
        made = self._given()
        context = self._context(spec, self._work(self.indices[0]), made, self._tutors(self.indices[0], made, teachers))
        asked = self.options.chain
        if asked is not None and asked.cached and self.begin != self.indices[0]:
            key = cache.key(spec, self.indices[0], context)
            if cache.find(key, lambda reason: None) is not None:
                return
        self.ready[target] = self._prepare(spec, context)

    def _run(self, teachers: Teachers) -> RunReport:
        path = self.folder.path
        with open_run(
            path,
            experiment=self.experiment,
            name=path.name,
            method=self.method,
            role="student" if self.compresses else "teacher",
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
                log.dataset(f"{self.table.called}/train", self.table.fingerprint, self.table.name, "training")
            made = self._stages(log, teachers)
            control = self._control(log, teachers, made)
            self._stop_if_asked("measuring")
            if self._has_task() and self.measures:
                report = self._measured(log, teachers, made, control)
            else:
                report = RunReport(path, made.model or made.tokenizer or path)
            found = [row for index in self.indices for row in read_findings(self._work(index))]
            report = dataclasses.replace(report, stages=made.figures, findings=found, reused=made.reused)
        if self.options.chain is not None and made.reused:
            self.console.result(self._told_reused(made))
        tell(self.console, report, log)
        return report

    def _told_reused(self, made: Made) -> str:
        """Which stages are of earlier runs."""
        runs = dict.fromkeys(made.reused.values())
        taken = [f"{', '.join(name for name, of in made.reused.items() if of == run)} from {run}" for run in runs]
        anew = [name for i in self.indices if (name := chain.label(self.recipe, i)) not in made.reused]
        return f"reused: {'; '.join(taken)}" + (f"; made now: {', '.join(anew)}" if anew else "")

    def _environment(self) -> dict[str, Any]:
        """Device, threads and package versions, as an artifact beside the recipe."""
        found = [d.metadata for d in metadata.distributions()]  # read once each: it is a parsed mail header
        installed = {m["Name"]: m["Version"] for m in found if m["Name"]}
        python = platform.python_version()
        return {**describe(self.options.device), "python": python, "packages": dict(sorted(installed.items()))}

    def workplace(self, place: int, folder: Path) -> StageContext:
        """What the recipe's stage at `place` is given before any other has run; a teacher that is a recipe is made."""
        self._open_data()
        return self._context(self.recipe.stages[place], folder, self._given(), self._teachers())

    # --- teachers -----------------------------------------------------------------------------------------------

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
        pretrained = [work_folder(folder, i, s.kind) / "model" for i, s in enumerate(recipe.stages) if s.pretrains]
        told = read_record(folder).get("tracked") == self._told_where() and self._has_store()
        return Teachers(final, general or (pretrained[-1] if pretrained else None), frozenset({0} if told else ()))

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
