"""Measures the models of a run side by side, reports them, and selects the one that the run leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from compress.console import Console
from compress.contracts import CONTROL, CONTROL_FROM_TEACHER, RunOptions, StageResult
from compress.measure.baseline import Baseline, describe_weak, measure_baseline, with_baseline
from compress.measure.cost import CostPlan
from compress.measure.measured_model import MeasuredModel
from compress.measure.models import measure
from compress.measure.subject import MEMBER, STAGE, Subject, kind_of, list_teachers, member_role, stage_role
from compress.modelfolder import folder as modelfolder
from compress.onnx.runtimes import Runtime
from compress.run import chain, waterfall
from compress.run.choice import Candidate, best_of, sentences
from compress.run.deploy import deploy
from compress.run.gain import CHECK, Gain, GainFacts, explain_gain, measure_gain
from compress.run.journal import Journal
from compress.run.publish import build_measurement_tags, log_measured
from compress.run.results import TRAINED_ROWS, ChainState, RunReport, read_trained_rows
from compress.run.selection import Selection
from compress.run.sources import Sources
from compress.run.stages import Stages
from compress.run.teachers import Teachers
from compress.stages.shared.labelled_data import get_metric_setting
from compress.stages.shared.stage import TAUGHT
from compress.stages.shared.validation import task_choice
from compress.storage import atomic
from compress.tracking import TrackedRun

START = f"{MEMBER}start"
"""The role of the model that a chain starts from, where another one teaches."""


WEAK = "below_baseline"
"""The finding of a model that is not above the baseline of its task, or chance."""
BASELINE = "or use the baseline"
TRAIN = f"train longer or at another learning rate, use a larger model, {BASELINE}"
NOTHING_TRAINED = f"start from a better model, {BASELINE}"


NO_TEACHER = "the teacher is columns of the data, not a model: {}size reduction and speedup are not reported"
NO_AGREEMENT = "agreement with it, "


class StageMeasurer:
    """Measures what the stages of a run made."""

    def __init__(
        self,
        selection: Selection,
        sources: Sources,
        stages: Stages,
        journal: Journal,
        options: RunOptions,
        console: Console,
    ) -> None:
        self.selection, self.sources, self.stages, self.journal = selection, sources, stages, journal
        self.options, self.console = options, console

    @property
    def folder(self) -> Path:
        """The folder of the run."""
        return self.stages.folder

    def measure(
        self, log: TrackedRun, teachers: Teachers, made: ChainState, controls: Mapping[str, StageResult]
    ) -> RunReport:
        """Measure the models side by side and report them; with `result: best` the best one becomes the run's."""
        recipe, table = self.selection.recipe, self.sources.table
        evaluation, last = recipe.evaluation, self.selection.indices[-1]
        assert made.model is not None
        assert recipe.data is not None
        subjects = self._subjects(teachers, made, controls)
        dataset, rows = f"{table.display_name}/{evaluation.split}", table.split(evaluation.split)
        deploy(
            [s.folder for s in subjects if kind_of(s.role) != "teacher" or len(subjects) == 1],
            rows, dataset, recipe.data.max_length,
            asked=self.options.onnx, say=self.console.note, warn=self.console.warn,
        )  # fmt: skip
        measured = measure(
            subjects,
            rows,
            task=table.task,
            label_names=table.label_names,
            dataset=dataset,
            digest=table.measured_fingerprint,
            max_length=recipe.data.max_length,
            cost=CostPlan(**evaluation.latency.model_dump(), throughput_rows=evaluation.throughput_rows),
            bootstrap=evaluation.bootstrap,
            settings=get_metric_setting(table),
            held=None if evaluation.split == "validation" else table.splits.get("validation"),
            device=self.options.device,
            precision=self.options.precision,
            group_column=evaluation.group_column,
            reference_name=self.selection.reference,
            say=self.console.note,
            watch=self.console.slow_progress,
        )
        rule = self._measure_baseline(evaluation.split, measured)
        measured = self._with_trained_rows(with_baseline(measured, rule))
        candidates = self._candidates(made, controls)
        steps = self._steps(measured)
        found = waterfall.rows(steps) if len(steps) > 1 else []
        gain, unknown = measure_gain(measured), NO_AGREEMENT if rows.taught is None else ""
        with contextlib.ExitStack() as scope:
            # A run that is to go on has its final figures when it is done: they are written once.
            own = log if self.selection.whole else scope.enter_context(self.stages.open_stage_run(log, last))
            lines = log_measured(
                own, self.console, measured, table=table, method=self.selection.method, told=self._roles_told(teachers),
                child=lambda role: self._child(log, role),
                result=best_of(candidates).role if candidates else "student",
                more=[
                    *(sentences(candidates, task_choice(table)[0]) if candidates else ()),
                    *([NO_TEACHER.format(unknown)] if self._has_column_teacher else ()),
                ],
                apart=[m.subject.role for m in measured if found and m.subject.role.startswith(STAGE)],
                more_note=waterfall.note(found) if found else "",
                reference=self.selection.reference, gain=gain,
            )  # fmt: skip
        if found:
            lines += self._tell_waterfall(log, steps, found)
        if self.selection.whole and self.selection.is_chain and self.stages.has_own_run(last):
            main = next((m for m in measured if m.subject.role == "student"), measured[-1])
            with self.stages.open_stage_run(log, last) as child:
                child.metrics(main.measurement.values)
                child.tags(build_measurement_tags(main))
        model = made.model
        if candidates:
            model = self.folder / "model"
            modelfolder.duplicate(best_of(candidates).folder, model)
        findings = [*self._tell_weak(log, candidates, measured, rule), *self._tell_gain(log, made, measured, gain)]
        return RunReport(
            self.folder, model, measured, lines, findings=findings, waterfall=found,
            reference=self.selection.reference, gain=gain,
        )  # fmt: skip

    def _with_trained_rows(self, measured: Sequence[MeasuredModel]) -> list[MeasuredModel]:
        """How many rows student and controls were trained on, where only the teacher labelled some of them."""
        works = [self.stages.work(index) for index in reversed(self.selection.indices)]
        rows = {
            "student": next(filter(None, map(read_trained_rows, works)), {}),
            **{role: read_trained_rows(self._tracked(role)) for role in (CONTROL, CONTROL_FROM_TEACHER)},
        }
        if not rows["student"].get(f"{TRAINED_ROWS}{TAUGHT}"):
            return list(measured)
        found = []
        for one in measured:
            values = {**one.measurement.values, **rows.get(one.subject.role, {})}
            found.append(replace(one, measurement=replace(one.measurement, values=values)))
        return found

    def _measure_baseline(self, split: str, measured: Sequence[MeasuredModel]) -> Baseline | None:
        """What answers the same rows without an encoder."""
        metric = next((m.metric for m in measured if m.metric is not None), None)
        return measure_baseline(self.sources.table, split, metric, self.console.note)

    def _tell_weak(
        self, log: TrackedRun, candidates: Sequence[Candidate], measured: Sequence[MeasuredModel], rule: Baseline | None
    ) -> list[dict[str, Any]]:
        """A finding where the run's result is not above the baseline or chance."""
        role = best_of(candidates).role if candidates else "student"
        main = next((m for m in measured if m.subject.role == role), measured[0])
        text = describe_weak(main, rule)
        if text is None:
            return []
        do = TRAIN if self.selection.trains else NOTHING_TRAINED
        log.tags({f"compress.finding.{WEAK}": f"{text}; {do}"})
        return [{"stage": main.subject.name, "step": 0, "check": WEAK, "finding": text, "do": do}]

    def _tell_gain(
        self, log: TrackedRun, made: ChainState, measured: Sequence[MeasuredModel], gain: Gain | None
    ) -> list[dict[str, Any]]:
        """A finding that says why the student is better than its control, or is not."""
        by_role = {m.subject.role: m for m in measured}
        teacher = by_role.get("teacher")
        taught_by = None if teacher is None else teacher.scored
        data = self.selection.recipe.data
        by_columns = data is not None and data.teacher_columns is not None
        last, index = self.selection.last, self.selection.indices[-1]
        if gain is None or not self.selection.whole or not last.trains():
            return []
        steps = 0 if made.last is None else made.last.steps
        facts = GainFacts(
            gain=gain.points,
            teacher=None if by_columns or taught_by is None else taught_by.value(gain.metric),
            control=gain.control.value(gain.metric),
            rows={k.removeprefix(TRAINED_ROWS): v for k, v in read_trained_rows(self.stages.work(index)).items()},
            seen=steps * getattr(last, "training").batch_rows,  # noqa: B009 - of all stages that train
            test=gain.student.rows,
            metric=gain.metric,
        )
        if not facts.rows:
            return []
        text, do = explain_gain(facts)
        log.tags({f"compress.finding.{CHECK}": f"{text}; {do}"})
        return [{"stage": by_role["student"].subject.name, "step": steps, "check": CHECK, "finding": text, "do": do}]

    def _child(self, log: TrackedRun, role: str) -> TrackedRun:
        """The tracked run of a measured model that is not the run's own result."""
        return self.journal.child(log, self._tracked(role), method=kind_of(role), role=kind_of(role))

    # --- a chain --------------------------------------------------------------------------------------------------

    def _steps(self, measured: Sequence[MeasuredModel]) -> list[waterfall.Step]:
        """The models of a chain in their order; none where the run is no chain."""
        recipe, indices = self.selection.recipe, self.selection.indices
        if not self.selection.is_chain or len(indices) < 2:
            return []
        by_role = {m.subject.role: m for m in measured}
        start = by_role.get(START) or by_role.get("teacher")
        last = chain.label(recipe, indices[-1])
        steps = [] if start is None else [waterfall.Step(start.subject.name, start)]
        stages = [(i, by_role[stage_role(i)]) for i in indices if stage_role(i) in by_role]
        steps += [waterfall.Step(chain.label(recipe, i), m) for i, m in stages]
        return steps + [waterfall.Step(last, m) for m in measured if m.subject.role == "student"]

    def _tell_waterfall(
        self, log: TrackedRun, steps: Sequence[waterfall.Step], found: Sequence[Mapping[str, Any]]
    ) -> list[str]:
        """Print the table, and log table, picture and figures. Returns the lines under it."""
        columns, rows = waterfall.table(found)
        lines = waterfall.lines(steps)
        self.console.table("cost and gain of each stage", columns, rows)
        for line in lines:
            self.console.result(line)
        folder = self.folder
        picture = folder / waterfall.PICTURE
        atomic.write_text(picture, waterfall.picture(folder.name, found))
        self.console.result(f"picture  {picture}")
        if self.selection.whole:
            log.artifact(picture)
            log.table(folder / waterfall.TABLE, columns, rows)
            log.metrics(waterfall.figures(found))
        return lines

    def _subjects(self, teachers: Teachers, made: ChainState, controls: Mapping[str, StageResult]) -> list[Subject]:
        """What is measured: who taught, what stages made on the way, the result, and its controls."""
        assert made.model is not None
        name, trained, is_chain = self.folder.name, self._trained, self.selection.is_chain
        subjects, milestones = self._references(teachers), self._milestones()
        if not subjects and not self._has_column_teacher:
            first = next(iter(milestones), None) if is_chain else None
            if first is None:
                return [Subject(name, made.model, "teacher")]
            subjects = [Subject(first, self.stages.target(milestones.pop(first)), "teacher")]
        student = f"{trained} + distillation" if trained and not is_chain else name
        subjects.append(Subject(student, made.model, "student", runtime=self._runtime(self.selection.indices[-1])))
        for told, index in milestones.items():
            role, runtime = stage_role(index), self._runtime(index)
            subjects.insert(-1, Subject(told, self.stages.target(index), role, runtime=runtime))
        place = len(subjects) - 1 if trained else len(subjects)
        subjects[place:place] = [Subject(self._name_control(role), c.folder, role) for role, c in controls.items()]
        return subjects

    def _references(self, teachers: Teachers) -> list[Subject]:
        """Whoever taught, and the model that the chain starts from, where that is another one."""
        found = [] if teachers.task is None else list_teachers(teachers.task, teachers.ensemble)
        start = self.sources.given_model()
        if not self.selection.is_chain or start is None or chain.same_folder(start, teachers.task):
            return found
        if not self.selection.first.compresses or "task" not in modelfolder.inspect(start).heads:
            return found
        return [*found, Subject("start", start, START if found else "teacher")]

    def _runtime(self, index: int) -> Runtime | None:
        """What a stage's model is measured in: of an exported one its file."""
        exported = self.selection.stage(index).writes_onnx and self.options.device == "cpu"
        return "onnxruntime" if exported else None

    def _milestones(self) -> dict[str, int]:
        """Name → place of the stages on the way whose models are measured."""
        stage, models = self.selection.stage, self.selection.models()
        if self.selection.is_chain:
            return {chain.label(self.selection.recipe, i): i for i in models if self.stages.answers(i)}
        between = [i for i in models if stage(i).milestone is not None and self.stages.answers(i)]
        many = len(between) > 1
        return {f"{stage(i).milestone}{f' {place}' if many else ''}": i for place, i in enumerate(between, 1)}

    @property
    def _has_column_teacher(self) -> bool:
        """Whether the result was taught by columns of the data, without a model."""
        return self.selection.recipe.has_column_teacher and self.selection.compresses

    @property
    def _trained(self) -> str | None:
        """What the result of a last stage is called that trains on what a stage before it made."""
        named = [self.selection.stage(i).trained for i in self.selection.indices[:-1]]
        return next((name for name in reversed(named) if name is not None), None)

    def _candidates(self, made: ChainState, controls: Mapping[str, StageResult]) -> list[Candidate]:
        """What the run's result is chosen from, what was there first before what was trained; none where nothing is."""
        if not self.selection.selects_best or made.last is None:
            return []
        metric, trained, found = task_choice(self.sources.table)[0], self._trained, []
        first = next(
            ((name, i) for name, i in self._milestones().items() if self.stages.target(i) == made.before), None
        )
        if first is not None and metric in made.last.start:
            found.append(
                Candidate(first[0], stage_role(first[1]), self.stages.target(first[1]), made.last.start[metric])
            )
        for role, control in controls.items():
            found.append(Candidate(self._name_control(role), role, control.folder, control.best[metric]))
        name = f"{trained} + distillation" if trained else "student"
        return [*found, Candidate(name, "student", made.last.folder, made.last.best[metric])]

    def _name_control(self, role: str) -> str:
        """What a control is called: after recovery training without a teacher, by the stage that it follows."""
        return f"{self._trained} alone" if self._trained and role == CONTROL else role.replace("-", " ")

    def _tracked(self, role: str) -> Path:
        """Whose journal a model that is not the run's own result writes to: a control goes on in its stage's."""
        if kind_of(role) == CONTROL:
            return self.stages.work(self.selection.indices[-1], f"-{role}")
        if role == "student":  # measured beside what the run leaves; its training is in the run's own journal
            return self.folder / "distilled"
        if role.startswith(STAGE):
            return self.stages.work(int(role.removeprefix(STAGE)))
        return self.folder / role.replace("teacher", "reference")

    @staticmethod
    def _roles_told(teachers: Teachers) -> set[str]:
        """Roles of the subjects that have a tracked run of their own."""
        if teachers.ensemble is None:
            return {"teacher"} if teachers.told else set()
        return {member_role(place) for place in teachers.told}
