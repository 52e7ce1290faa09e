"""Data by name → a Table: roles found, labels numbered, texts checked, missing splits made up for, all of it said."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from compress.data import tasks
from compress.data.batches.ragged import LabelArray
from compress.data.batches.randomness import order
from compress.data.reading import columns
from compress.data.reading.columns import RequestedColumns, TaskColumns
from compress.data.reading.copies import local_name, show_address, show_addresses
from compress.data.reading.frame import Frame
from compress.data.reading.places import Source, find_language, open_source
from compress.data.reading.pool import PoolRequest, select_rows
from compress.data.reading.teacher_columns import TeacherColumns, TeacherReader, find_untaught, make_untaught
from compress.data.reading.unlabelled import count_words, join_unlabelled, read_unlabelled
from compress.data.tables import splits as splitting
from compress.data.tables import table
from compress.data.tables.label_order import Labels
from compress.data.tables.table import Rows, Table, drop_rows, first_rows
from compress.data.task import METRIC, Choices, Task
from compress.data.text import texts
from compress.errors import UserError, did_you_mean, format_count, printable
from compress.storage.spill import spill

ALL = ("train", "validation", "test")
TAUGHT = ("train", "unlabelled")
"""Splits that a student is trained on."""


@show_addresses()
def open_table(
    name: str,
    *,
    task: str | None = None,
    text_column: str | None = None,
    text_pair_column: str | None = None,
    label_column: str | None = None,
    splits: Mapping[str, str] | None = None,
    needed: Sequence[str] = ALL,
    labels: Sequence[str] | None = None,
    expect_labels: Sequence[str] | None = None,
    expect_head: tuple[str, str] | None = None,
    bad_tags: Literal["refuse", "repair"] = "refuse",
    bad_rows: Literal["refuse", "drop"] = "refuse",
    limit: int | None = None,
    labelled_rows: int | None = None,
    unlabelled: str | None = None,
    teacher: TeacherColumns | None = None,
    pool: PoolRequest | None = None,
    seed: int = 0,
    settings: Mapping[str, Any] | None = None,
    bare: bool = False,
    others: Collection[str] = (),
    measured: str | None = None,
) -> Table:
    """Open a labelled data set.

    splits: our split name → the source's, where they differ.  needed: splits the caller will use; missing ones are cut
    from others, aloud.  labels: label names in the order of their ids.  expect_labels: a model's labels, whose order
    the table takes.  expect_head: kind and problem of a model's head: among the tasks that the data could be for, one
    that it answers.  bad_tags: see `label_lists.read_tags`.  bad_rows: "refuse", or "drop" rows without text or label.
    limit: most rows of each split.  labelled_rows: training rows that keep their labels; the others become unlabelled
    ones.  unlabelled: name of text without labels, whose rows join the unlabelled ones.  teacher: columns in
    which a teacher labelled rows: train, unlabelled and that text.  pool: a large text
    from which rows like the training rows are taken.  seed: of what is cut.
    settings: of the task, as a person chose them.  others: columns that no model reads and rows are told apart by;
    those that usually say where a row is from are always kept.
    bare: there may be no column of labels; then every row is an unlabelled one.  measured: a split that is enough where
    there is no train split.
    Raises UserError for everything that is wrong with the data.
    """
    notes: list[str] = []
    name, unlabelled = local_name(name), None if unlabelled is None else local_name(unlabelled)
    bound = tasks.find_bound(expect_head) if task is None else tasks.task_of(task)
    source = open_source(name, notes, splits, plain=bound is not None and bound.label_free, bad_rows=bad_rows)
    asked = _asked(source.info, text_column, text_pair_column, label_column)
    kind = _find_task(task, source, asked, expect_head, named=text_column is not None).configure(settings or {})
    if kind.pairs_answer:
        _refuse_added_rows(kind, unlabelled, labelled_rows, pool, teacher)
    if kind.scores_of and label_column is None and not _holds_scores(source, kind):
        asked = replace(asked, label=None)
    roles = _find_roles(kind, source, asked, notes, bare=bare)
    told_apart = columns.others(source.frames, roles, others, source.name)
    names = labels or _said_names(source, roles)
    read = _read_labels(kind, source, roles, Choices(names, expect_labels, bad_tags, bad_rows))
    notes += read.notes
    if "label" in roles:
        kind.choose_metrics(read.names)  # refuses one that it is not judged by
    reader = None if teacher is None else TeacherReader(teacher, kind, read.names)
    if reader is not None and kind.label_free and ("text_pair" in roles or source.documents is not None):
        raise UserError(
            "teacher columns need single texts", where="--teacher-column",
            why=f"{show_address(source.name)} has pairs or a search; each text has a vector",
            do="give texts with their vectors, and evaluate the student on this data",
        )  # fmt: skip
    rows = _read_splits(kind, source, roles, read, bad_rows, notes, told_apart, reader)
    if measured is not None and measured in rows and "train" not in rows:
        needed = (measured,)
    rows = splitting.complete(kind.arrange(rows, source.name, bad_rows, notes), needed, seed, source.name, notes)
    own = rows
    if unlabelled is not None:
        more = read_unlabelled(unlabelled, kind, roles, read.names, notes, reader)
        notes.append(f"unlabelled: {format_count(len(more))} of {unlabelled}")
        rows = _with_unlabelled(kind, rows, more, read.names)
    texts.note_oddities(rows, notes)
    texts.note_repeats(rows, notes)
    if limit is not None:
        same = rows is own
        rows = {split: _limited(part, limit, seed) for split, part in rows.items()}
        own = rows if same else {split: _limited(part, limit, seed) for split, part in own.items()}
        notes.append(f"limited to {limit:,} rows per split: " + ", ".join(f"{len(r):,} {s}" for s, r in rows.items()))
    if labelled_rows is not None and "train" in rows and len(rows["train"]) > labelled_rows:
        rows = _hide_labels(kind, rows, labelled_rows, seed, read.names)
        notes.append(
            f"{labelled_rows:,} training rows keep their labels; {len(rows['unlabelled']):,} rows are unlabelled"
        )
    if pool is not None:
        if reader is not None:
            why = "no teacher labels its rows"
            raise UserError("--pool is not supported with teacher columns", where="--pool", why=why, do="remove one")
        rows = _with_unlabelled(kind, rows, select_rows(pool, kind, rows, read.names, notes), read.names)
    if reader is not None:
        rows = _fill_in(reader, rows, source, notes)
    source_digest = digest = table.fingerprint(rows, kind.kind, read.names)
    if rows is not own:
        untaught = {split: replace(part, taught=None) for split, part in own.items()}
        source_digest = table.fingerprint(untaught, kind.kind, read.names)
    chosen = kind.settings_of(rows.get("train"), settings or {})
    metric = kind.metric_of(next(iter(rows.values())))
    chosen = chosen if metric is None else {**chosen, METRIC: metric}
    shown, notes = show_address(source.name), [show_address(note) for note in notes]
    language = find_language(name)
    return Table(rows, kind.kind, read.names, roles, digest, shown, notes, chosen, source_digest, language)


def _refuse_added_rows(kind: Task, *given: object) -> None:
    """Raise UserError for what adds or takes single rows, where a row is a query with all of its documents."""
    flags = ("--unlabelled", "--labelled-rows", "--pool", "--teacher-column")
    for flag, value in zip(flags, given, strict=True):
        if value is not None:
            why = "a row is a query with its documents"
            raise UserError(f"not supported for {kind.kind}", where=flag, why=why, do="remove it")


def _fill_in(reader: TeacherReader, rows: Mapping[str, Rows], source: Source, notes: list[str]) -> dict[str, Rows]:
    """The splits that are trained on, each row with what the teacher said of it, or else with its own label; rows
    without labels of which the teacher said nothing are left out. Vectors are also what validation and test rows are
    compared with."""
    made, said = dict(rows), {}
    somewhere = any(part.taught is not None for part in rows.values())
    for split in [s for s in rows if s in TAUGHT or reader.by_vector]:
        part = rows[split]
        if part.taught is None and reader.by_vector and somewhere:
            raise UserError(
                f"no column '{printable(reader.asked.names[0], 60)}' in the {split} split", where=source.name,
                why="vectors are compared there",
                do="add the column, or remove the split, which is then cut from the others",
            )  # fmt: skip
        if part.taught is None:
            part = replace(part, taught=make_untaught(part.labels, reader.outputs))
        else:
            said[split] = part.taught, part.labels
        assert part.taught is not None
        taught, own = reader.fill_in(part.taught, part.labels)
        if own:
            notes.append(f"{split}: {format_count(own)} without teacher values; their own labels are used")
        lost = find_untaught(taught)
        if lost.all():
            notes.append(f"{split}: no row has teacher values, so it is not used")
            del made[split]
            continue
        if lost.any():
            notes.append(f"{split}: {format_count(int(lost.sum()))} without teacher values and labels left out")
        part = replace(part, taught=taught)
        made[split] = part.take(np.flatnonzero(~lost)) if lost.any() else part
    if not said:
        columns = ", ".join(reader.asked.names)
        raise UserError(
            f"teacher column '{printable(columns, 80)}' not found", where=source.name,
            why="neither the training rows nor the unlabelled ones have it",
            do=did_you_mean(columns, [str(name) for name in source.first.columns]),
        )  # fmt: skip
    notes += reader.describe(said)
    return made


def _with_unlabelled(task: Task, rows: Mapping[str, Rows], more: Rows, names: Sequence[str]) -> dict[str, Rows]:
    """The splits, with more rows without labels after those that are there."""
    given = [rows["unlabelled"]] if "unlabelled" in rows else []
    return {**rows, "unlabelled": join_unlabelled(task, [*given, more], names)}


def _asked(info: Mapping[str, Any], text: str | None, pair: str | None, label: str | None) -> RequestedColumns:
    """The user's columns first, then those of info.json."""
    said = info.get("text_columns")
    if said is None:
        said = [info.get(f"{role}_column") for role in ("token", "question", "context")]
    said = [c for c in said if isinstance(c, str)] if isinstance(said, list) else []
    if text is None and pair is None and said:
        text, pair = said[0], said[1] if len(said) > 1 else None
    own = info.get("label_column", info.get("answers_column"))
    return RequestedColumns(text, pair, label or (own if isinstance(own, str) else None))


def _find_task(
    task: str | None, source: Source, asked: RequestedColumns, head: tuple[str, str] | None, *, named: bool
) -> Task:
    """The kind of task that the data is for. named: a person named the column of the text. Raises UserError where the
    model's head is for another."""
    kind = _infer_task(task, source, asked, head, named=named)
    if head is not None and kind.head != head:
        raise tasks.make_other_task_error(kind.kind, head, source.name)
    return kind


def _infer_task(
    task: str | None, source: Source, asked: RequestedColumns, head: tuple[str, str] | None, *, named: bool
) -> Task:
    said = source.info.get("task")
    if task is not None:
        return tasks.task_of(task)
    if (bound := tasks.find_bound(head)) is not None:
        return bound
    if isinstance(said, str) and not named:
        return tasks.find_task(said, source.name)
    return tasks.choose(source.first, asked, head)


def _find_roles(kind: Task, source: Source, asked: RequestedColumns, notes: list[str], *, bare: bool) -> dict[str, str]:
    """Role → column. Raises UserError for one that is missing, and for splits with different columns."""
    first = source.first
    wanted = TaskColumns(kind.text_roles, kind.optional_roles, kind.usual, kind.usual_labels)
    roles, more = columns.roles(first, wanted, asked, source.name)
    notes += more
    if kind.label_free and source.documents is None and "text_pair" not in roles and "label" in roles:
        notes.append(f"column '{printable(roles.pop('label'), 60)}' is not used: a score compares two texts")
    kind.check_columns(first, roles, source.name)
    needs_labels = not (bare or kind.label_free or kind.pairs_answer)
    if "label" not in roles and needs_labels and set(source.frames) != {"unlabelled"}:
        raise columns.unknown_label(first, source.name)
    columns.same_columns(source.frames, roles, source.name)
    return roles


def _holds_scores(source: Source, kind: Task) -> bool:
    """Whether the data says that its labels are those that a task is scored by, or says nothing."""
    said = source.info.get("task")
    return not isinstance(said, str) or tasks.find_task(said, source.name).kind in kind.scores_of


def _said_names(source: Source, roles: Mapping[str, str]) -> Sequence[str] | None:
    """Label names by the data itself, if they are those of the column that is used."""
    column = roles.get("label", "")
    if source.info.get("label_column", column) == column and "label_names" in source.info:
        return source.info["label_names"]
    return source.first.class_names.get(column)


def _read_labels(task: Task, source: Source, roles: Mapping[str, str], choices: Choices) -> Labels:
    if "label" not in roles:
        return Labels({}, list(task.names or (() if task.label_free else choices.names or choices.expected or ())))
    labelled = {s: task.label_column(f, roles) for s, f in source.frames.items() if s != "unlabelled"}
    return task.read_labels(labelled, source.name, choices)


def _read_splits(
    task: Task, source: Source, roles: Mapping[str, str], read: Labels, bad_rows: str, notes: list[str],
    others: Sequence[str], reader: TeacherReader | None,
) -> dict[str, Rows]:  # fmt: skip
    """All splits whose labels are not withheld."""
    rows = {}
    for split, frame in source.frames.items():
        if split in read.hidden:
            notes.append(f"{split}: its labels are withheld (all -1 or empty), so it is not used")
            continue
        part = _read_rows(
            task, frame, roles, read.numbers.get(split), read.names, f"{source.name}: {split}", bad_rows, notes,
            others, reader if split in TAUGHT or task.label_free else None,
        )  # fmt: skip
        rows[split] = part if source.documents is None else replace(part, documents=source.documents)
    return rows


def _read_rows(
    task: Task,
    frame: Frame,
    roles: Mapping[str, str],
    labels: LabelArray | None,
    names: Sequence[str],
    where: str,
    bad_rows: str,
    notes: list[str],
    others: Sequence[str] = (),
    reader: TeacherReader | None = None,
) -> Rows:
    """One split with its texts and labels; rows that lack either are refused or dropped."""
    if bad_rows not in ("refuse", "drop"):
        raise UserError(f"unknown value '{bad_rows}' of bad_rows", do="allowed: refuse, drop")
    bad = {} if labels is None else {("without a label", roles["label"]): task.find_unlabelled(labels)}
    made = {}
    for role in [r for r in roles if r != "label"]:
        what = f"without {'words' if role == 'words' else 'a ' + role.replace('_', ' ')}", roles[role]
        made[role], bad[what] = task.read_text(role, frame.columns[roles[role]], f"{where}: column '{roles[role]}'")
    found = task.make_missing_labels(made, frame.rows, names) if labels is None else labels
    apart = {name: frame.columns[name] for name in others if name in frame.columns}
    found = spill(found) if isinstance(found, np.ndarray) else found
    taught = None if reader is None else reader.read(frame, where, count_words(made))
    rows = Rows(made, found, spill(np.arange(1, frame.rows + 1, dtype=np.int64)), apart, taught)
    if labels is not None:
        bad |= {(what, roles["label"]): at for what, at in task.misfits(rows).items()}
    for (what, column), at in bad.items():
        if at.any():
            told = f"{format_count(int(at.sum()))} {what} ({first_rows(rows.numbers[at])})"
            fix = "fill them in" if what.startswith("without") else "correct them"
            drop_rows(told, where, bad_rows, notes, fix, why=f"column '{column}'")
    lost = np.logical_or.reduce(list(bad.values()))
    if lost.all():
        raise UserError("no rows are left", where=where)
    return rows.take(np.flatnonzero(~lost)) if lost.any() else rows


def _hide_labels(
    task: Task, rows: Mapping[str, Rows], labelled: int, seed: int, names: Sequence[str]
) -> dict[str, Rows]:
    """The splits with `labelled` rows in train; the rest of it follows the unlabelled rows, as if it had no labels.

    The labelled rows are those of `_limited`: a larger number keeps all rows of a smaller one.
    """
    train = rows["train"]
    places = order(len(train), "limit", seed)
    kept, hidden = (train.take(np.sort(part)) for part in (places[:labelled], places[labelled:]))
    return _with_unlabelled(task, {**rows, "train": kept}, hidden, names)


def _limited(rows: Rows, limit: int, seed: int) -> Rows:
    """At most `limit` rows: the same ones every time, from all over the split, in their order."""
    if limit < 1:
        raise UserError(f"invalid limit of {limit} rows", do="give 1 or more")
    if len(rows) <= limit:
        return rows
    return rows.take(np.sort(order(len(rows), "limit", seed)[:limit]))
