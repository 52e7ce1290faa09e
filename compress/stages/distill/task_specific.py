"""Task-specific distillation: on the rows of a task, by a teacher, several teachers, or columns of the data."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from torch import nn

from compress.contracts import BatchSource, Teacher
from compress.data.batches.evaluation_batches import evaluation_batches
from compress.data.batches.paired import PairedBatches
from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Rows
from compress.data.tasks import task_of
from compress.data.tasks.embedding import COSINE
from compress.encoder.infer.prepare import Precision
from compress.encoder.modules.model import Model
from compress.encoder.modules.static import finish_static, keep_silent
from compress.errors import UserError
from compress.modelfolder.folder import LoadedModel
from compress.stages.distill import initialization
from compress.stages.distill.aligned import AlignedModule, AlignedTeacher
from compress.stages.distill.augmentation import NoCopyError, augment_rows, model_folder, settle_augmentation
from compress.stages.distill.cache.source import TeacherSetup
from compress.stages.distill.column_teacher import COLUMNS, ColumnTeacher, check_columns_suffice, head_of_table
from compress.stages.distill.diagnosis import diagnose_task
from compress.stages.distill.live_teacher import fingerprint_teacher, join_teachers, load_task_teacher
from compress.stages.distill.preparation import Preparation, build_objectives
from compress.stages.distill.quantization_aware import add_quantizers, set_dropout
from compress.stages.distill.queries import check_ranking
from compress.stages.distill.spec import Spec
from compress.stages.distill.teacher_facts import ask_about_labels, compare_with_labels
from compress.stages.distill.text_agreement import TextAgreement
from compress.stages.distill.text_rows import Models, TextRows, choose_text_rows
from compress.stages.distill.two_tokenizers import TwoTokenizers, check_answers_rows
from compress.stages.distill.tying import Tying
from compress.stages.distill.vectors import check_objectives, find_width_objective, make_width_error, match_width
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import SPREAD_TOKENS, TaskData, sample_batches
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.validation import WATCHED, collect_logits, task_choice, task_validation
from compress.training.module import StageModule

Validation = tuple[
    Callable[[nn.Module], Mapping[str, float]], tuple[str, Literal["max", "min"]], Mapping[str, Literal["max", "min"]]
]
"""How the student is validated, what its best weights are chosen by, and what else keeps the training going."""


@dataclass(frozen=True)
class _Teaching:
    """Who teaches. setup: whom the objectives ask.  asked: the teacher itself, for checks and validation; None where
    columns of the data teach.  figures: what it says about the labels."""

    setup: TeacherSetup
    asked: Teacher | None
    figures: Mapping[str, float]


class TaskPreparation(Preparation):
    """Prepares a distillation on rows: what is given is checked first, then the student is made, then who teaches it.

    Raises UserError where student, teacher, tokenizers, labels or lengths do not fit each other.
    """

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.is_asked_for_copies = spec.augmentation is not None and spec.augmentation.method != "auto"
        spec = settle_augmentation(spec, context.table(), context)
        super().__init__(spec, context)
        c = context
        self.folder = c.teacher
        if not c.recipe.has_column_teacher:
            self.folder = require_folder(c.teacher, "a teacher with a task head", "--teacher", "distill")
        self.table = c.table()
        task = task_of(self.table.task)
        self.is_label_free = task.label_free
        self.labelled, columns = len(self.table.split("train")), self.table.split("train").taught
        self.by_columns = columns is not None
        if self.by_columns:
            tagged, embeds = isinstance(columns, Ragged), self.is_label_free
            check_columns_suffice(spec, build_objectives(spec), tagged=tagged, embeds=embeds)
        self.teacher = self._load_teacher()
        check_objectives(build_objectives(spec), spec, task)
        check_ranking(build_objectives(spec), spec, task)
        answers = None if self.is_label_free and not self.by_columns else head_of_table(self.table)
        self.begun = initialization.origin(spec.student, c, self.teacher, "task", answers)
        self.is_alien = self.teacher is not None and self.check_tokens(self.begun, self.teacher)
        if self.is_alien:
            self._check_other_tokens()
        self.reader = self.begun.donor if self.is_alien or self.teacher is None else self.teacher
        self.load_live = functools.cache(self._load_live)

    def _load_teacher(self) -> LoadedModel | None:
        if self.folder is None:
            return None
        teacher = load_task_teacher(self.folder, self.context)
        check_same_labels(teacher, self.table)
        return teacher

    def _check_other_tokens(self) -> None:
        """Raise UserError where a student with another tokenizer cannot be compared with its teacher."""
        if self.is_label_free:
            raise UserError(
                "student and teacher have different tokenizers", where=str(self.begun.folder),
                why="vectors are compared on the same tokens",
                do="use a student with the teacher's tokenizer, or give the teacher's vectors as a column of the data "
                "(recipe embed-vectors)",
            )  # fmt: skip
        check_answers_rows(self.table, build_objectives(self.spec), str(self.begun.folder))

    def prepare(self) -> PreparedStage:
        """Student, teacher, rows and objectives."""
        c, spec = self.context, self.spec
        parents, augmented = self._augment()
        fingerprint = self._fingerprint_teacher()
        text = self._choose_text(augmented, fingerprint)
        data = TaskData.encode(
            self.table, self.reader, c, plan=spec.training, unlabelled=text.unlabelled, augmented=text.augmented,
            noise=spec.noise,
        )  # fmt: skip
        by_query = any(getattr(objective, "by_query", False) for _, objective in build_objectives(spec).values())
        source = data.source(spec.training, c.seed, by_query=by_query)
        student = self._initialize_for_training(data)
        taught_by = self.teacher or self.reader
        objectives = self.bind_objectives(student, taught_by.model, source, self.begun.copied)
        both = self._read_with_both(objectives)
        if both is not None:
            paired = both.pair_rows(data.rows, data.train)
            both.tell(paired)
            source = PairedBatches(source, paired)
        kind = StageModule if both is None else AlignedModule
        live = self.load_live if both is None else functools.cache(lambda p: AlignedTeacher(self.load_live(p)))
        self.fit_projections(student, objectives, source, live, kind)
        teaching = self._find_teaching(data, objectives, source, both, fingerprint, live)
        tying = Tying(spec, student, c)
        counts = {**data.count_rows(self.table), **text.figures}
        validate, select, watched = self._validate(data, text, student, teaching.asked, both)
        prepared = PreparedStage(
            finish=lambda: StageOutput(
                finish_static(tying.finish_student()),
                self.begun.tokenizer_files,
                self.add_note(folder_meta(c, parents, self.table), student),
            ),
            module=kind(student, objectives, teaching.setup.teacher, self.list_regularizers(student, tying)),
            opening=teaching.setup.opening,
            source=source,
            plan=self.settle_plan(source, student, tying, self.begun),
            validate=tying.wrap_validation(validate),
            select=select,
            watched=watched,
            identity={
                "data": self.table.fingerprint,
                "tokenizer": data.vocabulary_sha,
                "teacher": fingerprint,
            },
            params=self.list_params(student)
            | ({} if c.ensemble is None else {"teachers": c.ensemble.sentence()})
            | {f"rows.{name}": count for name, count in counts.items()},
            rows={**counts, **teaching.figures},
            closing=tying.report_distances,
        )
        if self.is_label_free:  # the checks look at classes
            return prepared
        judged = spec if text.held_out is not None else spec.model_copy(update={"stop": "validation"})
        batches = None if both is None else both.build_teacher_batches
        return diagnose_task(judged, c, prepared, self.table, self.reader, teaching.asked, batches)

    # --- rows -------------------------------------------------------------------------------------------------

    def _augment(self) -> tuple[dict[str, Path], Rows | None]:
        """The parents of the student by role, and the requested copies of the texts with other words."""
        c, spec = self.context, self.spec
        parents = self.begun.parents()
        if self.folder is not None:
            parents |= {"teacher": self.folder} if c.ensemble is None else c.ensemble.parents()
        if spec.augmentation is None:
            return parents, None
        words = model_folder(spec.augmentation, self.folder, c.general_teacher)
        try:
            shared = None if spec.cache is None else 0  # runs with other seeds read the same answers
            augmented = augment_rows(spec.augmentation, self.table, c, words, seed=shared)
        except NoCopyError:
            if self.is_asked_for_copies:
                raise
            c.say("no copies: none would differ from its text")
            return parents, None
        return parents | ({} if words is None else {"words of the augmentation": words}), augmented

    def _choose_text(self, augmented: Rows | None, fingerprint: str) -> TextRows:
        """The rows without labels that are trained on, and those that are held out."""
        quiet = dataclasses.replace(self.context, say=lambda _: None)
        models = Models(
            None if self.by_columns else self.teacher,
            lambda: self.load_live(self.context.precision),
            fingerprint,
            lambda: self._initialize(TaskData.encode(self.table, self.reader, quiet), quiet),
            self.reader,
        )
        return choose_text_rows(self.spec, self.table, self.context, augmented, models)

    # --- the student ------------------------------------------------------------------------------------------

    def _initialize(self, data: TaskData, context: StageContext) -> Model:
        sample = lambda: initialization.first_rows(data.train, self.labelled, context)  # noqa: E731
        student = initialization.initialize_student(self.begun, context, "task", sample)
        objective = find_width_objective(build_objectives(self.spec)) if self.is_label_free else None
        if objective is None:
            return student
        ours, theirs = student.head_configs["task"].labels, self._count_dimensions()
        if ours != theirs and self.begun.how is None:
            raise make_width_error(objective, ours, theirs)
        return match_width(student, theirs, data.train, lambda places: self._ask_for_vectors(data, places), context)

    def _count_dimensions(self) -> int:
        """Of the teacher's vectors."""
        taught = self.table.split("train").taught
        if isinstance(taught, np.ndarray):
            return taught.shape[1]
        assert self.teacher is not None
        return self.teacher.heads["task"].labels

    def _ask_for_vectors(self, data: TaskData, places: np.ndarray) -> np.ndarray:
        """(N, D) of these training texts by the teacher."""
        if data.taught is not None:
            return data.taught[places]
        c, some = self.context, data.train.take(places)
        batches = (batch.to(c.device) for batch in evaluation_batches(some, SPREAD_TOKENS))
        return collect_logits(self.load_live(c.precision), batches, some)

    def _initialize_for_training(self, data: TaskData) -> Model:
        """The student with quantizers and dropout as the recipe has them."""
        c, spec = self.context, self.spec
        sample = lambda: sample_batches(data.train, self.labelled, self.calibration_rows, c)  # noqa: E731
        student = add_quantizers(self._initialize(data, c), spec, c, sample)
        student = set_dropout(student, spec.dropout)
        keep_silent(student)
        return student

    # --- the teacher ------------------------------------------------------------------------------------------

    def _fingerprint_teacher(self) -> str:
        """What must be the same of it for a checkpoint to be continued."""
        if self.folder is None or self.by_columns:
            return COLUMNS
        return fingerprint_teacher(self.folder, self.context)

    def _load_live(self, precision: Precision) -> Teacher:
        assert self.teacher is not None
        return join_teachers(self.teacher, precision, self.context)

    def _read_with_both(self, objectives: Mapping[str, tuple[float, nn.Module]]) -> TwoTokenizers | None:
        """What reads the rows with the tokenizers of student and teacher, where they differ and a teacher is asked."""
        if self.teacher is None or not self.is_alien or self.by_columns or not self.spec.asks_teacher():
            return None
        return TwoTokenizers(self.table, self.reader, self.teacher, objectives, self.context)

    def _find_teaching(
        self,
        data: TaskData,
        objectives: Mapping[str, tuple[float, nn.Module]],
        source: BatchSource,
        both: TwoTokenizers | None,
        fingerprint: str,
        live: Callable[[Precision], Teacher],
    ) -> _Teaching:
        """The teacher, the cache of it, or the columns, and how it answers the labelled rows."""
        c, spec = self.context, self.spec
        if self.teacher is None or self.by_columns:
            assert data.taught is not None
            columns = ColumnTeacher(data.taught, data.train) if spec.asks_teacher() else None
            figures = {} if self.is_label_free else compare_with_labels(data.taught, data.train, self.labelled)
            return _Teaching(TeacherSetup(columns), None, figures)
        length = task_max_length(c.recipe)
        setup = self.set_up_teaching(
            self.teacher, fingerprint, objectives, source, data.vocabulary_sha, length, live
        )  # fmt: skip
        asked = setup.teacher if spec.cache is None else live(c.precision)
        figures: Mapping[str, float] = {}
        if asked is not None and both is None and spec.checks != "off" and not self.is_label_free:
            figures = ask_about_labels(asked, data.train, self.labelled, c)
        return _Teaching(setup, asked, figures)

    # --- validation -------------------------------------------------------------------------------------------

    def _validate(
        self, data: TaskData, text: TextRows, student: Model, asked: Teacher | None, both: TwoTokenizers | None
    ) -> Validation:  # fmt: skip
        """By the labels; where text is held out, by how well the student agrees with the teacher on it."""
        c, table = self.context, self.table
        parent = None if asked is None else lambda: asked
        validate, select, watched = task_validation(data, table, c, parent=parent), task_choice(table), WATCHED
        by_cosine = self.is_label_free and select[0] == COSINE
        if by_cosine and student.head_configs["task"].labels != self._count_dimensions():
            select = ("loss", "min")  # vectors of other widths have no cosine
        if text.held_out is None:
            return validate, select, watched
        carried = None if both is None else both.build_teacher_batches
        alike = TextAgreement(table, text.held_out, self.reader, c, asked, carried)
        return alike.add_to(validate), alike.select, alike.watched
