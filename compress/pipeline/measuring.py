"""The models of a run are measured side by side, told, and the one that the run leaves is chosen."""

from __future__ import annotations

from pathlib import Path

from compress.choice import Candidate, best_of, sentences
from compress.contracts import StageResult
from compress.deployment import deploy
from compress.measure import STAGE, CostPlan, Subject, kind_of, measure, member_role, stage_role, taught_by
from compress.modelfolder import folder as modelfolder
from compress.pipeline.made import Made, RunReport
from compress.pipeline.staging import Staging
from compress.publish import log_measured
from compress.stages import task_choice
from compress.teachers import Teachers
from compress.tracking import TrackedRun


class Measuring(Staging):
    """What the stages of a run made, measured."""

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
