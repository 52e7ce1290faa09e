"""General distillation: on a corpus, by the teacher's masked-LM head where it has one."""

from __future__ import annotations

import functools
from collections.abc import Callable

from compress.contracts import BatchSource, MaskingSpec, Teacher
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.infer.prepare import prepare as prepare_teacher
from compress.encoder.modules.model import Model
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.folder import LoadedModel
from compress.stages.distill import initialization
from compress.stages.distill.diagnosis import diagnose_corpus
from compress.stages.distill.live_teacher import find_general_teacher
from compress.stages.distill.preparation import Preparation
from compress.stages.distill.quantization_aware import add_quantizers, set_dropout
from compress.stages.distill.states import STATES, state_validation
from compress.stages.distill.tying import Tying, Validation
from compress.stages.shared.corpora import corpus_batches, corpus_validation
from compress.stages.shared.folder_meta import folder_meta
from compress.stages.shared.stage import PreparedStage, StageOutput
from compress.training.length import Mode
from compress.training.module import StageModule

UNMASKED = MaskingSpec(mask=0.0, random=0.0, keep=1.0)
"""Of a teacher without a masked-LM head, whose student predicts no masked tokens either."""


class GeneralPreparation(Preparation):
    """Prepares a distillation on running text."""

    def prepare(self) -> PreparedStage:
        """Student, teacher, blocks of text and objectives. Raises UserError where these do not fit each other."""
        c, spec = self.context, self.spec
        folder, teacher = find_general_teacher(spec, c)
        head = "mlm" if "mlm" in teacher.heads else None
        begun = initialization.origin(spec.student, c, teacher, head)
        self.check_tokens(begun, teacher)
        tokenizer = Tokenizer.from_files(teacher.tokenizer_files, where=str(folder))
        tokenizer.check_fits(teacher.config.vocabulary, where=str(folder))
        corpus = c.corpus()
        assert c.recipe.corpus is not None
        length = c.recipe.corpus.max_length
        check_length(length, teacher.config.max_positions, where="corpus.max_length")
        masking = UNMASKED if spec.masking is None and head is None else spec.get_masking()

        def batches(split: str) -> BatchSource:
            return corpus_batches(
                c, tokenizer, split, masking, spec.training, block_length=length, noise=spec.noise, mask_seed=masks
            )

        # What is kept of the teacher is kept for one text: runs of all seeds hide the same pieces then.
        masks = None if spec.cache is None else 0
        source = batches("train")
        student = initialization.initialize_student(begun, c, head, lambda: self.read(source))
        student = set_dropout(add_quantizers(student, spec, c, lambda: self.read_first(source)), spec.dropout)
        objectives = self.bind_objectives(student, teacher.model, source, begun.copied)
        fingerprint = modelfolder.fingerprint(folder)
        live = functools.cache(lambda precision: prepare_teacher(teacher.model, precision))
        self.fit_projections(student, objectives, source, live)
        taught = self.set_up_teaching(teacher, fingerprint, objectives, source, tokenizer.vocabulary_sha, length, live)
        tying = Tying(spec, student, c)
        found = self._choose_validation(student, teacher, batches("validation"), lambda: live(c.precision))
        validate, select = (None, None) if found is None else found
        prepared = PreparedStage(
            finish=lambda: StageOutput(
                tying.finish_student(),
                begun.tokenizer_files,
                self.add_note(folder_meta(c, begun.parents() | {"teacher": folder}, None, corpus), student),
            ),
            module=StageModule(student, objectives, taught.teacher, self.list_regularizers(student, tying)),
            opening=taught.opening,
            source=source,
            plan=self.settle_plan(source, student, tying, begun, validated=validate is not None),
            validate=None if validate is None else tying.wrap_validation(validate),
            select=select,
            identity={
                "corpus": corpus.fingerprint,
                "tokenizer": tokenizer.vocabulary_sha,
                "teacher": fingerprint,
            },
            params=self.list_params(student),
            closing=tying.report_distances,
        )
        if head is None:
            return prepared
        asked = taught.teacher if spec.cache is None else live(c.precision)
        return diagnose_corpus(spec, c, prepared, batches("validation"), teacher.config.vocabulary, asked)

    def _choose_validation(
        self, student: Model, teacher: LoadedModel, held_out: BatchSource, ask: Callable[[], Teacher]
    ) -> tuple[Validation, tuple[str, Mode]] | None:
        """What the weights are selected by: masked-LM loss, else how near the hidden states are to the teacher's."""
        if "mlm" in teacher.heads:
            return corpus_validation(held_out, self.context), ("mlm_loss", "min")
        if student.config.hidden == teacher.config.hidden:
            return state_validation(held_out, ask, self.context), (STATES, "max")
        self.context.say(
            "the general teacher has no masked-LM head, and the student has another width: no validation, and "
            "the last weights are kept"
        )
        return None
