"""Distillation with different tokenizers: encodes the data with both and rejects unsupported options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import cast

from torch import nn

from compress.contracts import Batch, Needs, Objective
from compress.data.batches.examples import Examples, join
from compress.data.batches.paired import PairedRows
from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of
from compress.data.text.alignment import Spans, TokenRows, align
from compress.data.text.tokenizer import Tokenizer, check_length
from compress.encoder.config.layer_maps import MEASURED
from compress.errors import UserError
from compress.modelfolder.folder import LoadedModel
from compress.stages.distill.spec import Spec
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import StageContext

Objectives = Mapping[str, tuple[float, nn.Module]]
OWN = "start the student from this teacher, or use a teacher with the student's tokenizer"


class TwoTokenizers:
    """Texts as both models read them. Raises UserError for lengths and tokenizers that do not fit the teacher."""

    def __init__(
        self, table: Table, student: LoadedModel, teacher: LoadedModel, objectives: Objectives, context: StageContext
    ) -> None:
        self.task, self.context = task_of(table.task, table.settings), context
        self.length = task_max_length(context.recipe)
        self.student, self.teacher = (
            Tokenizer.from_files(model.tokenizer_files, where=str(model.path)) for model in (student, teacher)
        )
        self.teacher.check_fits(teacher.config.vocabulary, where=str(teacher.path))
        check_length(self.length, teacher.config.max_positions, where="data.max_length")
        self.reads_pieces = any(map(_reads_pieces, _asked(objectives).values()))

    def pair_rows(self, sources: Sequence[Rows], student: Examples) -> PairedRows:
        """The rows with the teacher's reading of them. student: what its tokenizer made of `sources`, joined."""
        teacher = join(*(self.task.encode(self.teacher, rows, max_length=self.length) for rows in sources))
        return PairedRows(student, teacher, self._spans(sources) if self.reads_pieces else None)

    def tell(self, rows: PairedRows) -> None:
        """Say how the training texts are cut and compared."""
        ours, theirs = len(rows.student.ids), len(rows.teacher.ids)
        how = "by task logits only" if rows.spans is None else f"on {int(rows.spans.counts.sum()):,} common spans"
        self.context.say(
            f"teacher and student have different tokenizers: {theirs:,} tokens and {ours:,} tokens on the training "
            f"texts, "
            f"compared {how}"
        )

    def build_teacher_batches(self, rows: Rows, student: Examples) -> Callable[[Batch], Batch]:
        """Gives batches of these rows, held-out ones, what the teacher reads."""
        return self.pair_rows([rows], student).add_teacher_batch

    def _spans(self, sources: Sequence[Rows]) -> Spans:
        ours, theirs = (
            TokenRows.of(list(self._located(tokenizer, sources))) for tokenizer in (self.student, self.teacher)
        )
        return align(ours, theirs)

    def _located(self, tokenizer: Tokenizer, sources: Iterable[Rows]):
        for rows in sources:
            for texts, pairs in rows.slices():
                yield tokenizer.encode_batch(texts, pairs, max_length=self.length, spans=True)


def check_comparable(spec: Spec, objectives: Objectives, student: str, teacher: str) -> None:
    """Raise UserError for what a recipe asks of two models with different tokenizers that only one could give.

    student, teacher: where they come from, for the message.
    """
    why = f"the tokenizer of {student} is not that of {teacher}"
    if spec.level == "general":
        raise UserError(
            "student and teacher have different vocabularies",
            where=student,
            why=f"it is not that of {teacher}, and on a corpus masked tokens are compared",
            do=f"{OWN}; level: task_specific works with two tokenizers",
        )
    asked = _asked(objectives)
    for name, needs in asked.items():
        if (advice := _advice(needs)) is not None:
            raise UserError("cannot be compared across tokenizers", where=f"objective {name}", why=why, do=advice)
    if not asked:
        return
    for key, value in (("noise", spec.noise), ("cache", spec.cache)):
        if value is not None:
            raise UserError(f"{key} needs one tokenizer for both", where=key, why=why, do=f"remove it, or {OWN}")
    if spec.layer_map == MEASURED:
        raise UserError(
            "layers are compared token by token, which needs one tokenizer for both",
            where="layer_map",
            why=why,
            do="use uniform, learned or smallest",
        )


def check_answers_rows(table: Table, objectives: Objectives, student: str) -> None:
    """Raise UserError for a task whose answers are of pieces, or whose rows depend on the tokenizer."""
    if not _asked(objectives):
        return
    task = task_of(table.task, table.settings)
    if task.head[0] != "classification":
        raise UserError(
            f"{task.kind} predicts per token, and the two tokenizers split text differently", where=student, do=OWN
        )
    if table.settings.get("long_text") == "chunk":
        raise UserError(
            "the two tokenizers split a text into different chunks", where="data.long_text", do=f"use cut; or {OWN}"
        )


def _asked(objectives: Objectives) -> dict[str, Needs]:
    """What objectives read of the teacher, of those that ask it."""
    needs = {name: cast(Objective, objective).teacher_needs for name, (_, objective) in objectives.items()}
    return {name: need for name, need in needs.items() if need is not None}


def _reads_pieces(needs: Needs) -> bool:
    return bool(needs.hidden_states or needs.projections or needs.last_hidden)


def _advice(needs: Needs) -> str | None:
    """What to use instead, where needs are of single pieces that have no mean over a span."""
    if needs.mlm is not None:
        return "use soft_targets with on: task, or an objective of hidden states"
    if needs.attentions or needs.attention_scores:
        return "use minilmv2, whose relations are compared on common spans"
    if isinstance(needs.hidden_states, frozenset) and -1 in needs.hidden_states:
        return "use hidden_mse, which compares layers on common spans"
    return None
