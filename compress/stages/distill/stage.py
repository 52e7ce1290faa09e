"""Distil a teacher into a student cut from it: DistilBERT (Sanh et al. 2019), on a corpus and then on the task."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from torch import nn

from compress import registry
from compress.contracts import Batch, BatchSource, Objective, Teacher, TrainingPlan
from compress.data.batches.examples import Examples
from compress.data.batches.paired import PairedBatches
from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Table
from compress.data.tasks import task_of
from compress.data.tasks.embedding import COSINE
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.config.layer_maps import ModelPair
from compress.encoder.config.unsupported import refuse_quantized
from compress.encoder.infer.prepare import Precision
from compress.encoder.infer.prepare import prepare as prepare_teacher
from compress.encoder.modules.model import Model
from compress.encoder.modules.static import finish_static, keep_silent
from compress.errors import UserError
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.ensemble import EnsembleTeacher, members_in_order
from compress.modelfolder.folder import FolderMeta, LoadedModel, load_model
from compress.modelfolder.resolve import resolve
from compress.objectives._layers import Layerwise
from compress.stages.distill import initialization, layers
from compress.stages.distill.aligned import AlignedModule, AlignedTeacher
from compress.stages.distill.augmentation import augment_rows, model_folder, no_masked_lm
from compress.stages.distill.cache.source import TeacherSetup, TeachingJob, set_up_teacher
from compress.stages.distill.column_teacher import COLUMNS, ColumnTeacher, check_columns_suffice, head_of_table
from compress.stages.distill.controls import list_controls
from compress.stages.distill.diagnosis import diagnose_corpus, diagnose_task
from compress.stages.distill.quantization_aware import Ranges, add_quantizers, set_dropout
from compress.stages.distill.queries import check_ranking
from compress.stages.distill.spec import Spec
from compress.stages.distill.teacher_facts import ask_about_labels, compare_with_labels
from compress.stages.distill.text_agreement import TextAgreement
from compress.stages.distill.text_rows import Models, choose_text_rows
from compress.stages.distill.two_tokenizers import TwoTokenizers, check_answers_rows, check_comparable
from compress.stages.distill.tying import Tying
from compress.stages.distill.vectors import check_objectives, check_widths
from compress.stages.shared.corpora import corpus_batches, corpus_validation
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.model_shape import ModelShape, read_shape
from compress.stages.shared.stage import PreparedStage, StageContext, StageOutput, require_folder
from compress.stages.shared.task_data import TaskData, sample_batches
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.training_plan import describe_plan, describe_task_plan, settle_plan
from compress.stages.shared.validation import WATCHED, task_choice, task_validation
from compress.training.module import StageModule
from compress.training.schedule import total_steps


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
            check_objectives(self._built(), self.spec, task_of(table.task))
            check_ranking(self._built(), self.spec, task_of(table.task))
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
            check_length(block.max_length, start.positions, where=where)
            made = start
        if self.spec.quantize is not None:
            if made.config is not None:
                refuse_quantized(made.config, "quantizing it again", "the student")
            made = dataclasses.replace(made, config=None)
        if None not in (made.vocabulary, donor.vocabulary) and made.vocabulary != donor.vocabulary:
            named = self.spec.student and self.spec.student.model
            student = named or "the student of the previous stage"
            check_comparable(self.spec, self._built(), student, "the teacher of this stage")
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
        s, t = self.spec, self.spec.training
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
        c = self.context
        by = "agreement with the teacher on held-out text" if s.stop == "agreement" else None
        length = describe_plan(t) if s.level == "general" else describe_task_plan(t, c, self._parent(), metric=by)
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
        return self._corpus() if self.spec.level == "general" else self._task()

    def controls(self, steps: int) -> dict[str, Spec]:
        """Role → the stage that trains this control for `steps` steps: see `list_controls`."""
        if self.spec.level != "general" and task_of(self.context.table().task).label_free:
            return {}  # there are no labels to train one on
        return list_controls(self.spec, self.context, steps)

    # --- on a corpus ------------------------------------------------------------------------------------------

    def _corpus(self) -> PreparedStage:
        c, spec = self.context, self.spec
        reads = spec.reads_vocabulary()
        what = "a pretrained encoder as teacher" + (", with a masked-LM head" if reads else "")
        folder = require_folder(c.general_teacher, what, "--general-teacher", "distill")
        teacher = load_model(folder, require={"mlm"} if reads else (), device=c.device)
        head = "mlm" if "mlm" in teacher.heads else None
        if head is None:
            c.say("the general teacher has no masked-LM head: validation is skipped and the last weights are kept")
        begun = initialization.origin(spec.student, c, teacher, head)
        self._is_alien(begun, teacher)
        tokenizer = Tokenizer.from_files(teacher.tokenizer_files, where=str(folder))
        tokenizer.check_fits(teacher.config.vocabulary, where=str(folder))
        corpus = c.corpus()
        assert c.recipe.corpus is not None
        length = c.recipe.corpus.max_length
        check_length(length, teacher.config.max_positions, where="corpus.max_length")
        masking = spec.get_masking()

        def batches(split: str) -> BatchSource:
            return corpus_batches(
                c, tokenizer, split, masking, spec.training, block_length=length, noise=spec.noise, mask_seed=masks
            )

        # What is kept of the teacher is kept for one text: runs of all seeds hide the same pieces then.
        masks = None if spec.cache is None else 0
        source = batches("train")
        student = initialization.initialize_student(begun, c, head, lambda: self._sample(source))
        student = set_dropout(add_quantizers(student, spec, c, lambda: self._first(source)), spec.dropout)
        objectives = self._objectives(student, teacher.model, source, begun.copied)
        fingerprint = modelfolder.fingerprint(folder)
        live = functools.cache(lambda precision: prepare_teacher(teacher.model, precision))
        taught = self._teaching(teacher, fingerprint, objectives, source, tokenizer.vocabulary_sha, length, live)
        tying = Tying(spec, student, c)
        prepared = PreparedStage(
            finish=lambda: StageOutput(
                tying.finish_student(),
                begun.tokenizer_files,
                self._noted(folder_meta(c, begun.parents() | {"teacher": folder}, None, corpus), student),
            ),
            module=StageModule(student, objectives, taught.teacher, [*tying.regularizers, Ranges(student, spec)]),
            opening=taught.opening,
            source=source,
            plan=self._plan(source, student, tying, validated=head is not None),
            validate=None if head is None else tying.wrap_validation(corpus_validation(batches("validation"), c)),
            select=None if head is None else ("mlm_loss", "min"),
            identity={
                "corpus": corpus.fingerprint,
                "tokenizer": tokenizer.vocabulary_sha,
                "teacher": fingerprint,
            },
            params=self._params(student),
            closing=tying.report_distances,
        )
        if head is None:
            return prepared
        asked = taught.teacher if spec.cache is None else live(c.precision)
        return diagnose_corpus(spec, c, prepared, batches("validation"), teacher.config.vocabulary, asked)

    # --- on the task ------------------------------------------------------------------------------------------

    def _task(self) -> PreparedStage:
        c, spec = self.context, self.spec
        folder = c.teacher
        if not c.recipe.has_column_teacher:
            folder = require_folder(folder, "a teacher with a task head", "--teacher", "distill")
        table = c.table()
        by_columns = table.split("train").taught is not None
        if by_columns:
            check_columns_suffice(spec, self._built(), tagged=isinstance(table.split("train").taught, Ragged))
        teacher = None if folder is None else load_model(folder, require={"task"}, keep={"task"}, device=c.device)
        if teacher is not None:
            check_same_labels(teacher, table)
        free = task_of(table.task).label_free
        check_objectives(self._built(), spec, task_of(table.task))
        check_ranking(self._built(), spec, task_of(table.task))
        begun = initialization.origin(spec.student, c, teacher, "task", None if free else head_of_table(table))
        alien = teacher is not None and self._is_alien(begun, teacher)
        if alien and free:
            raise UserError(
                "student and teacher have different tokenizers", where=str(begun.folder),
                why="vectors are compared on the same tokens", do="use a student with the teacher's tokenizer",
            )  # fmt: skip
        if alien:
            check_answers_rows(table, self._built(), str(begun.folder))
        parents = begun.parents()
        if folder is not None:
            parents |= {"teacher": folder} if c.ensemble is None else c.ensemble.parents()
        more = None
        if spec.augmentation is not None:
            source_of_words = model_folder(spec.augmentation, folder, c.general_teacher)
            more = augment_rows(spec.augmentation, table, c, source_of_words)
            parents |= {} if source_of_words is None else {"words of the augmentation": source_of_words}
        reader = begun.donor if alien or teacher is None else teacher
        labelled, length = len(table.split("train")), task_max_length(c.recipe)
        fingerprint = COLUMNS
        if folder is not None and not by_columns:
            fingerprint = modelfolder.fingerprint(folder) if c.ensemble is None else c.ensemble.fingerprint
        plain = functools.cache(lambda precision: self._together(cast(LoadedModel, teacher), precision))

        quiet = dataclasses.replace(c, say=lambda _: None)

        def make_student(train: Examples, at: StageContext = c) -> Model:
            sample = lambda: initialization.first_rows(train, labelled, at)  # noqa: E731
            return initialization.initialize_student(begun, at, "task", sample)

        text = choose_text_rows(
            spec, table, c, more,
            Models(
                None if by_columns else teacher, lambda: plain(c.precision), fingerprint,
                lambda: make_student(TaskData.encode(table, reader, quiet).train, quiet), reader,
            ),
            uses_text=self._uses_unlabelled(table),
        )  # fmt: skip
        data = TaskData.encode(
            table, reader, c, plan=spec.training, unlabelled=text.unlabelled, augmented=text.augmented,
            noise=spec.noise,
        )  # fmt: skip
        by_query = any(getattr(objective, "by_query", False) for _, objective in self._built().values())
        source = data.source(spec.training, c.seed, by_query=by_query)
        student = make_student(data.train)
        student = add_quantizers(
            student, spec, c, lambda: sample_batches(data.train, labelled, self._calibration_rows(), c)
        )
        student = set_dropout(student, spec.dropout)
        keep_silent(student)
        if free and teacher is not None:
            check_widths(self._built(), student.head_configs["task"].labels, teacher.heads["task"].labels)
        objectives = self._objectives(student, (teacher or reader).model, source, begun.copied)
        both = None
        if alien and teacher is not None and not by_columns and spec.asks_teacher():
            both = TwoTokenizers(table, reader, teacher, objectives, c)
            paired = both.pair_rows(data.rows, data.train)
            both.tell(paired)
            source = PairedBatches(source, paired)
        if teacher is None or by_columns:
            assert data.taught is not None
            asked = None
            taught = TeacherSetup(ColumnTeacher(data.taught, data.train) if spec.asks_teacher() else None)
            said = compare_with_labels(data.taught, data.train, labelled)
        else:
            live = functools.cache(lambda precision: AlignedTeacher(plain(precision)) if both else plain(precision))
            taught = self._teaching(teacher, fingerprint, objectives, source, data.vocabulary_sha, length, live)
            asked = taught.teacher if spec.cache is None else live(c.precision)
            said = {}
            if asked is not None and both is None and spec.checks != "off" and not free:
                said = ask_about_labels(asked, data.train, labelled, c)
        tying, kind = Tying(spec, student, c), StageModule if both is None else AlignedModule
        counts = {**data.count_rows(table), **text.figures}
        parent = None if asked is None else lambda: asked
        validate, select, watched = task_validation(data, table, c, parent=parent), task_choice(table), WATCHED
        widths = {model.head_configs["task"].labels for model in (student, (teacher or reader).model)} if free else {0}
        if select[0] == COSINE and len(widths) > 1:
            select = ("loss", "min")  # vectors of other widths have no cosine
        if text.held_out is not None:
            carried = None if both is None else both.build_teacher_batches
            alike = TextAgreement(table, text.held_out, reader, c, asked, carried)
            validate, select, watched = alike.add_to(validate), alike.select, alike.watched
        prepared = PreparedStage(
            finish=lambda: StageOutput(
                finish_static(tying.finish_student()),
                begun.tokenizer_files,
                self._noted(folder_meta(c, parents, table), student),
            ),
            module=kind(student, objectives, taught.teacher, [*tying.regularizers, Ranges(student, spec)]),
            opening=taught.opening,
            source=source,
            plan=self._plan(source, student, tying),
            validate=tying.wrap_validation(validate),
            select=select,
            watched=watched,
            identity={
                "data": table.fingerprint,
                "tokenizer": data.vocabulary_sha,
                "teacher": fingerprint,
            },
            params=self._params(student)
            | ({} if c.ensemble is None else {"teachers": c.ensemble.sentence()})
            | {f"rows.{name}": count for name, count in counts.items()},
            rows={**counts, **said},
            closing=tying.report_distances,
        )
        if free:  # the checks look at classes
            return prepared
        judged = spec if text.held_out is not None else spec.model_copy(update={"stop": "validation"})
        batches = None if both is None else both.build_teacher_batches
        return diagnose_task(judged, c, prepared, table, reader, asked, batches)

    def _uses_unlabelled(self, table: Table) -> bool:
        """Whether rows without labels are trained on; without a teacher they say nothing."""
        data, wanted = self.context.recipe.data, self.spec.use_unlabelled
        if data is not None and data.unlabelled_rows == 0:
            return False
        if wanted == "auto" or (data is not None and data.adds_text):
            return "unlabelled" in table.splits and self.spec.asks_teacher()
        return wanted

    def _together(self, teacher: LoadedModel, precision: Precision) -> Teacher:
        """The teacher ready to be asked; where several teach, all of them as one, `teacher` being their lead."""
        ensemble = self.context.ensemble
        lead = prepare_teacher(teacher.model, precision)
        if ensemble is None:
            return lead
        self.context.say(ensemble.sentence())
        others = [
            (prepare_teacher(load_model(m.folder, keep={"task"}, device=self.context.device).model, precision), places)
            for m, places in zip(ensemble.members, members_in_order(ensemble), strict=True)
            if m is not ensemble.leader
        ]
        return EnsembleTeacher(ensemble, teacher.heads["task"], lead, others)

    # --- both -------------------------------------------------------------------------------------------------

    def _teaching(
        self,
        teacher: LoadedModel,
        fingerprint: str,
        objectives: Mapping[str, tuple[float, nn.Module]],
        source: BatchSource,
        tokenizer: str,
        max_length: int,
        live: Callable[[Precision], Teacher],
    ) -> TeacherSetup:
        """Whom the objectives ask: the live teacher, or what the recipe's cache holds of it."""
        spec = self.spec
        passes = total_steps(spec.training, source) / source.steps(0)
        job = TeachingJob(spec.level, source, tokenizer, max_length, passes)
        parts = [objective for _, objective in objectives.values()]
        return set_up_teacher(spec.cache, self.context, teacher.model, fingerprint, parts, job, live)

    def _plan(self, source: BatchSource, student: Model, tying: Tying, *, validated: bool = True) -> TrainingPlan:
        """How long and how fast. Ramps, and ranges that are frozen, need the number of steps before training."""
        paced = bool(tying.regularizers) or bool(Ranges(student, self.spec).quantizers)
        hidden = student.config.hidden
        return settle_plan(self.spec.training, source, hidden, self.context, open_ended=validated and not paced)

    def _is_alien(self, begun: initialization.Origin, teacher: LoadedModel) -> bool:
        """Whether the student reads other pieces than its teacher. Raises UserError where these could not be
        compared."""
        if begun.folder is None or modelfolder.same_vocabulary(begun.folder, teacher.path):
            return False
        check_comparable(self.spec, self._built(), str(begun.folder), str(teacher.path))
        return True

    def _objectives(
        self, student: Model, teacher: Model, source: BatchSource, copied: Sequence[int] | None
    ) -> dict[str, tuple[float, nn.Module]]:
        built = self._built()
        self._tell_of_maps(built)
        pair = ModelPair(student.config, teacher.config, ())
        if any(isinstance(o, Layerwise) for _, o in built.values()):  # the others read no map, and measuring one costs
            pair = self._mapped(student, teacher, source, copied)
        for _, objective in built.values():
            cast(Objective, objective).bind(pair)
            objective.to(self.context.device)
        return built

    def _tell_of_maps(self, built: Mapping[str, tuple[float, nn.Module]]) -> None:
        """Fused kernels never hold attention maps: what reads them has them computed by plain products."""
        needs = {name: cast(Objective, objective).student_needs for name, (_, objective) in built.items()}
        reading = [name for name, n in needs.items() if n.attentions or n.attention_scores]
        if reading:
            self.context.say(
                f"{' and '.join(reading)} reads attention maps, which fused attention kernels do not return: "
                "attention is computed without them, which is slower and needs memory quadratic in the length"
            )

    def _mapped(self, student: Model, teacher: Model, source: BatchSource, copied: Sequence[int] | None) -> ModelPair:
        """The models with the layers that are compared, which are told."""
        spec = self.spec
        pair = layers.resolve_compared_layers(
            spec.layer_map, student, teacher, copied=copied, batches=lambda: self._sample(source)
        )
        self.context.say(layers.comparison(pair, spec.layer_map))
        return pair

    def _sample(self, source: BatchSource) -> Iterator[Batch]:
        """Real input in the order of the first epoch."""
        for index in range(source.steps(0)):
            yield from (batch.to(self.context.device) for batch in source.step(0, index))

    def _calibration_rows(self) -> int:
        return 0 if self.spec.quantize is None else self.spec.quantize.rows

    def _first(self, source: BatchSource) -> Iterator[Batch]:
        """Real input, as many rows as ranges are observed on."""
        left = self._calibration_rows()
        for batch in self._sample(source):
            if left <= 0:
                return
            left -= batch.rows
            yield batch

    @staticmethod
    def _noted(meta: FolderMeta, student: Model) -> FolderMeta:
        """meta, with a word about rounding; a static model cuts no text."""
        if student.config.is_static:
            return meta.model_copy(update={"max_length": None})
        if student.config.quantization is None:
            return meta
        return meta.model_copy(
            update={"notes": (*meta.notes, "trained with quantization-aware training, as it is deployed")}
        )

    def _built(self) -> dict[str, tuple[float, nn.Module]]:
        built: dict[str, tuple[float, nn.Module]] = {}
        for row in self.spec.objectives:
            name = row.kind
            while name in built:  # the same objective twice, say at two temperatures
                name += "_again"
            built[name] = (row.weight, registry.build("compress.objectives", row))
        return built

    @staticmethod
    def _params(student: Model) -> dict[str, int]:
        return {"student.layers": student.config.depth, "student.hidden": student.config.hidden}
