"""Distil a teacher into a student cut from it: DistilBERT (Sanh et al. 2019), on a corpus and then on the task."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from compress.data.tasks import task_of
from compress.data.text.tokenizer import check_length
from compress.encoder.config.unsupported import refuse_quantized
from compress.modelfolder.resolve import resolve
from compress.stages.distill import initialization
from compress.stages.distill.augmentation import model_folder, no_masked_lm, settle_augmentation
from compress.stages.distill.controls import list_controls
from compress.stages.distill.general import GeneralPreparation
from compress.stages.distill.live_teacher import fill_as_worker
from compress.stages.distill.preparation import build_objectives
from compress.stages.distill.queries import check_ranking
from compress.stages.distill.spec import Spec
from compress.stages.distill.task_specific import TaskPreparation
from compress.stages.distill.text_rows import check_text, count_added_rows
from compress.stages.distill.two_tokenizers import check_comparable
from compress.stages.distill.vectors import check_objectives
from compress.stages.shared.model_shape import ModelShape, read_shape
from compress.stages.shared.stage import PreparedStage, StageContext
from compress.stages.shared.training_plan import describe_plan, describe_task_plan


class Stage:
    """Distils a teacher into a student on text."""

    def __init__(self, spec: Spec, context: StageContext) -> None:
        self.spec, self.context = spec, context

    def plan_shape(
        self, start: ModelShape | None, teacher: ModelShape | None, general: ModelShape | None
    ) -> ModelShape | None:
        recipe, corpus = self.context.recipe, self.spec.level == "general"
        donor = general if corpus else teacher
        if not corpus and (table := self.context.opened()) is not None:
            settled = settle_augmentation(self.spec, table, self.context)
            check_objectives(build_objectives(settled), settled, task_of(table.task))
            check_ranking(build_objectives(settled), settled, task_of(table.task))
            check_text(self.spec, table, self.context)
        if not corpus and donor is None and recipe.has_column_teacher:
            donor = self._student_shape(start)
        where, block = ("corpus.max_length", recipe.corpus) if corpus else ("data.max_length", recipe.data)
        if donor is None or block is None:
            return None
        check_length(block.max_length, donor.positions, where=where)
        self._check_augmentation(general)
        compared = None if self.spec.row_filter is None else self.spec.row_filter.names_model()
        if compared is not None:
            read_shape(resolve(compared))
        if self.spec.student is not None:
            made = initialization.plan_shape(self.spec.student, donor)
        elif start is None:
            return None
        else:
            made = start
        check_length(block.max_length, made.positions, where=where)
        if self.spec.quantize is not None:
            if made.config is not None:
                refuse_quantized(made.config, "quantizing it again", "the student")
            made = dataclasses.replace(made, config=None)
        if None not in (made.vocabulary, donor.vocabulary) and made.vocabulary != donor.vocabulary:
            named = self.spec.student and self.spec.student.model
            student = named or "the student of the previous stage"
            check_comparable(self.spec, build_objectives(self.spec), student, "the teacher of this stage")
        return made

    def _student_shape(self, start: ModelShape | None) -> ModelShape:
        """The shape that a student without a teacher model starts from. Raises UserError where there is none."""
        named = None if self.spec.student is None else self.spec.student.model
        if named is not None:
            return read_shape(resolve(named))
        if self.spec.student is not None or start is None:
            raise initialization.make_no_model_error()
        return start

    def _check_augmentation(self, general: ModelShape | None) -> None:
        """Raise UserError, before any stage has run, for a model that cannot say what else a word could be."""
        asked = self.spec.augmentation
        if asked is None:
            return
        if asked.model is not None:
            model_folder(asked, None, None)
        elif asked.method == "masked-lm" and (general is None or not general.masked_lm):
            raise no_masked_lm("that of the teacher")

    def plan(self) -> list[str]:
        c, t = self.context, self.spec.training
        s = settle_augmentation(self.spec, c.opened(), c)
        if s.student is None:
            born = "the student of the previous stage"
        else:
            born = s.student.sentence()
        losses = " + ".join(f"{row.weight:g} {row.kind}" for row in s.objectives)
        a = s.augmentation
        more = "" if a is None else f"; up to {a.copies} copies of each text, {a.rate:.0%} of the words by {a.method}"
        if s.quantize is not None:
            born += f", quantized by {s.quantize.scheme or 'rules'}"
        what = "corpus" if s.level == "general" else "task"
        by = "agreement with the teacher on held-out text" if s.stop == "agreement" else None
        if s.level == "general":
            length = describe_plan(t)
        else:
            length = describe_task_plan(t, c, self._parent(), metric=by, more_rows=count_added_rows(s, c))
        return [f"distil on the {what}: {born}; loss {losses}; {length}{more}"]

    def _parent(self) -> Path | None:
        """The folder whose encoder the student has the width of, as far as it is known."""
        if self.spec.student is None:
            return self.context.model
        narrower = self.spec.student.model is not None or self.spec.student.hidden is not None
        return None if narrower else self.context.teacher

    def prepare(self) -> PreparedStage:
        """Student, teacher, rows (task-specific) or blocks of text (general), and the objectives to train with.

        Raises UserError where student, teacher, tokenizers, labels or lengths do not fit each other, and where an
        objective reads outputs that a model does not have."""
        kind = GeneralPreparation if self.spec.level == "general" else TaskPreparation
        return kind(self.spec, self.context).prepare()

    def make_parts(self, handed: Path) -> None:
        """Fill the teacher cache, as one of several workers. handed: the folder of what was handed over."""
        fill_as_worker(self.spec, self.context, handed)

    def controls(self, steps: int) -> dict[str, Spec]:
        """Role → the stage that trains this control for `steps` steps: see `list_controls`."""
        if self.spec.level != "general" and task_of(self.context.table().task).label_free:
            return {}  # there are no labels to train one on
        return list_controls(self.spec, self.context, steps)
