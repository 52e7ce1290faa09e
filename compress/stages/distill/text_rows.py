"""The rows of a task that only the teacher labels: set aside for early stopping, filtered, and drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from compress.data.batches.ragged import Ragged
from compress.data.tables.table import Rows, Table
from compress.data.tasks import task_of
from compress.data.text.texts import find_overlap
from compress.data.text.tokenizer import Tokenizer
from compress.encoder.infer.prepare import prepare
from compress.encoder.modules.model import Model
from compress.errors import UserError, format_count
from compress.modelfolder import folder as modelfolder
from compress.modelfolder.ensemble import EnsembleTeacher
from compress.modelfolder.folder import LoadedModel, load_model
from compress.modelfolder.resolve import resolve
from compress.stages.distill.augmentation import settle_augmentation
from compress.stages.distill.probe import AskedModel
from compress.stages.distill.row_filter import (
    WHERE,
    AskedReader,
    check_filter,
    describe_filter,
    digest_weights,
    find_answers,
    make_empty_error,
    select_rows,
)
from compress.stages.distill.row_filter_spec import STUDENT, TEACHERS, RowFilterSpec
from compress.stages.distill.spec import Spec
from compress.stages.shared.labelled_data import task_max_length
from compress.stages.shared.stage import HELD_OUT, StageContext
from compress.stages.shared.task_head import check_same_labels
from compress.stages.shared.unlabelled_rows import draw_unlabelled_rows, find_unlabelled_rows, warn_of_few_rows

MOST_HELD_OUT, HELD_OUT_PART = 2000, 10
"""Rows that are set aside to stop by agreement: one in so many, and no more than these."""
LEAST_HELD_OUT = 10
"""Fewer say nothing."""


@dataclass(frozen=True)
class TextRows:
    """unlabelled, augmented: rows to train on; None: none.  held_out: rows that only tell when to stop.  figures: how
    many were left out, and why."""

    unlabelled: Rows | None
    augmented: Rows | None
    held_out: Rows | None = None
    figures: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Models:
    """Who is asked by a filter. teacher: None where it is columns.  live: the teacher ready to be asked, on what its
    own tokenizer makes of a text.  fingerprint: of all that decides its answers.  student: makes the student as it is
    initialized.  reads: whose tokenizer the student has."""

    teacher: LoadedModel | None
    live: Callable[[], AskedModel]
    fingerprint: str
    student: Callable[[], Model]
    reads: LoadedModel


def uses_text(spec: Spec, table: Table, context: StageContext) -> bool:
    """Whether rows without labels are trained on; without a teacher they say nothing."""
    data, wanted = context.recipe.data, spec.use_unlabelled
    if data is not None and data.unlabelled_rows == 0:
        return False
    if wanted == "auto" or (data is not None and data.adds_text):
        return "unlabelled" in table.splits and spec.asks_teacher()
    return wanted


def check_text(spec: Spec, table: Table, context: StageContext) -> None:
    """Raises UserError, before any model is trained, where text is asked for and there is none."""
    if uses_text(spec, table, context) and "unlabelled" not in table.splits:
        raise UserError(
            "there are no texts without labels, which the recipe's use_unlabelled asks for", where=table.name,
            do="add some with --unlabelled, or set use_unlabelled to auto",
        )  # fmt: skip


def count_added_rows(spec: Spec, context: StageContext) -> int:
    """How many rows are trained on beside the labelled ones: text without labels, and copies. At most: some may be
    left out."""
    table, data = context.opened(), context.recipe.data
    if table is None or data is None:
        return 0
    settled = settle_augmentation(spec, table, context).augmentation
    copies = 0 if settled is None else settled.copies * len(table.split("train"))
    if "unlabelled" not in table.splits or not uses_text(spec, table, context):
        return copies
    there = len(table.splits["unlabelled"])
    return copies + (there if data.unlabelled_rows is None else min(there, data.unlabelled_rows))


def choose_text_rows(
    spec: Spec, table: Table, context: StageContext, augmented: Rows | None, models: Models
) -> TextRows:
    """The rows of this stage that only the teacher labels. augmented: copies of training texts.

    Raises UserError for a filter that does not fit the task, for one that leaves nothing, and where there is no text to
    stop by."""
    data = context.recipe.data
    assert data is not None
    rows = find_unlabelled_rows(table, context) if uses_text(spec, table, context) else None
    held, figures = None, {}
    if spec.stop == "agreement" and data.unlabelled_rows != 0:  # 0: a person wants to see what there is without
        rows, held = _set_aside(rows, table, context)
        figures[HELD_OUT] = len(held)
    asked = spec.row_filter
    if asked is None:
        rows = None if rows is None else draw_unlabelled_rows(rows, context)
        return TextRows(rows, augmented, held, figures)
    by_teacher = None if augmented is None or (spec.augmentation and spec.augmentation.keep_labels) else augmented
    if rows is None and by_teacher is None:
        if data.unlabelled_rows == 0:
            return TextRows(rows, augmented, held, figures)
        raise UserError(
            "the row filter has no effect: there are no rows that only the teacher labels", where=WHERE,
            do="add text with --unlabelled or --pool, or remove the filter",
        )  # fmt: skip
    task = task_of(table.task, table.settings)
    check_filter(asked, task)
    teacher, others = _list_readers(asked, table, context, models)
    classes, every, kept = len(table.label_names), 0, 0
    chosen: list[Rows | None] = []
    confidence: list[np.ndarray] = []
    removed: dict[str, float] = {}
    for part, most in ((rows, data.unlabelled_rows), (by_teacher, None)):
        if part is None:
            chosen.append(None)
            continue
        answers = find_answers(task, part, task_max_length(context.recipe), context, teacher, others)
        confidence.append(answers.confidence)
        places, lost = select_rows(asked, answers, classes, most, context.recipe.seed)
        removed = {name: removed.get(name, 0) + count for name, count in lost.items()}
        every, kept = every + len(part), kept + len(places)
        chosen.append(part.take(places) if len(places) else None)
    if not kept:
        raise make_empty_error(removed, np.concatenate(confidence))
    context.say(describe_filter(kept, every, removed))
    unlabelled, copies = chosen
    if rows is not None:
        warn_of_few_rows(0 if unlabelled is None else len(unlabelled), context)
    return TextRows(unlabelled, augmented if by_teacher is None else copies, held, figures | removed)


def _set_aside(rows: Rows | None, table: Table, context: StageContext) -> tuple[Rows, Rows]:
    """(the rows to train on, those that only tell when to stop), drawn by the recipe's seed. A text that is there
    several times, or with a label too, is trained on alone."""
    count = 0 if rows is None else min(MOST_HELD_OUT, len(rows) // HELD_OUT_PART)
    if rows is None or count < LEAST_HELD_OUT:
        found = "none" if rows is None else format_count(len(rows))
        raise UserError(
            "stopping by agreement needs text without labels", where="stop: agreement",
            why=f"a tenth of it is held out, at least {LEAST_HELD_OUT} rows; found {found}",
            do="add text with --unlabelled or --pool, or remove it",
        )  # fmt: skip
    places = np.random.default_rng([context.recipe.seed, count]).permutation(len(rows))
    trained, held = rows.take(np.sort(places[count:])), rows.take(np.sort(places[:count]))
    held = held.take(np.flatnonzero(~find_overlap(held, [trained, table.split("train")])))
    if len(held) < LEAST_HELD_OUT:
        raise UserError(
            "stopping by agreement needs text that is not trained on", where="stop: agreement",
            why=f"all but {len(held):,} of {count:,} held-out rows are there again among the others",
            do="add other text with --unlabelled or --pool, or remove it",
        )  # fmt: skip
    number = format_count(len(held), "unlabelled row")
    context.say(f"{number} held out: training stops by the agreement with the teacher")
    return trained, held


def _list_readers(
    asked: RowFilterSpec, table: Table, context: StageContext, models: Models
) -> tuple[AskedReader | None, Sequence[AskedReader]]:
    """(the teacher, the models that it is compared with)."""
    teacher, where = models.teacher, f"{WHERE}.disagreement"
    if teacher is None and asked.disagreement is not None and isinstance(table.split("train").taught, Ragged):
        raise UserError(
            "teacher columns of tags are not compared with a model", where=where,
            why="they hold words that are truncated", do="remove it, or name a teacher with --teacher",
        )  # fmt: skip
    ours = None
    if teacher is not None:
        ours = AskedReader(models.live(), _tokenizer(teacher), models.fingerprint)
    if asked.disagreement == TEACHERS:
        together = None if teacher is None else models.live()
        if not isinstance(together, EnsembleTeacher):
            raise UserError("there are no several teachers", where=where, do="name them with --teacher, or use student")
        assert ours is not None
        members = together.list_members()
        return ours, [replace(ours, model=m, mark=f"{ours.mark} {i}") for i, m in enumerate(members)]
    if asked.disagreement == STUDENT:
        student = models.student().eval()
        return ours, [AskedReader(student, _tokenizer(models.reads), digest_weights(student))]
    name = asked.names_model()
    if name is None:
        return ours, ()
    other = load_model(resolve(name), require={"task"}, keep={"task"}, device=context.device)
    check_same_labels(other, table)
    model = prepare(other.model, context.precision)
    return ours, [AskedReader(model, _tokenizer(other), modelfolder.fingerprint(other.path))]


def _tokenizer(loaded: LoadedModel) -> Tokenizer:
    return Tokenizer.from_files(loaded.tokenizer_files, where=str(loaded.path))
