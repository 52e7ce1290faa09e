"""Text without labels beside a labelled data set: a file, folder or hf:name → rows that only a teacher can label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from compress.data.batches.ragged import LabelArray, Ragged
from compress.data.reading import columns, files, hub, places
from compress.data.reading.columns import RequestedColumns, TaskColumns
from compress.data.reading.frame import Frame
from compress.data.reading.names import make_unknown_error
from compress.data.reading.teacher_columns import TeacherReader, make_untaught
from compress.data.tables.table import Rows, first_rows
from compress.data.task import Task
from compress.errors import UserError, format_count, printable
from compress.storage.spill import concatenate, spill

PREFERRED = ("unlabelled", "train")
"""Splits of a source that are read, the first that is there; validation and test rows are never trained on."""


def read_unlabelled(
    name: str,
    task: Task,
    roles: Mapping[str, str],
    label_names: Sequence[str],
    notes: list[str],
    teacher: TeacherReader | None = None,
) -> Rows:
    """All rows of `name` without labels, in the columns that the labelled data has.

    roles: role → column of the labelled data; where the text has other columns, they are inferred.  Rows without text
    are left out and counted in `notes`, and so is a column of labels.  teacher: reads the columns in which a teacher
    labelled them.
    Raises UserError for what is no text, for a pair of which one text is missing, and where no row is left.
    """
    wanted = [role for role in roles if role != "label"]
    parts: list[dict[str, pa.ChunkedArray]] = []
    taught: list[tuple[LabelArray | None, np.ndarray]] = []
    count, empty, unread = 0, [], set()
    for where, frame in _frames(name, notes):
        chosen = _columns(frame, task, roles, wanted, where, notes)
        unread |= {chosen.pop("label")} if "label" in chosen else set()
        read = {role: task.read_plain_text(role, frame.columns[chosen[role]], where) for role in wanted}
        lost = np.logical_or.reduce([missing | _is_blank(values) for values, missing in read.values()])
        empty += (np.flatnonzero(lost)[:4] + 1 + count).tolist() if len(empty) < 4 else []  # one more than is shown
        if teacher is not None:
            said = teacher.read(frame, where, count_words({role: values for role, (values, _) in read.items()}))
            taught.append((said, np.flatnonzero(~lost)))
        kept = pa.array(~lost) if lost.any() else None
        parts.append({r: values if kept is None else values.filter(kept) for r, (values, _) in read.items()})
        count += frame.rows
    rows = sum(len(part[wanted[0]]) for part in parts)
    if unread:
        shown = ", ".join(f"'{printable(one, 40)}'" for one in sorted(unread))
        notes.append(f"{name}: its labels ({shown}) are not used; the teacher labels these rows")
    if rows < count:
        first = first_rows(np.array(empty))
        notes.append(f"{name}: {format_count(count - rows)} without text ({first}) left out")
    if not rows:
        raise UserError("no row has text", where=name)
    made = {role: pa.chunked_array([c for part in parts for c in part[role].chunks]) for role in wanted}
    labels = task.make_missing_labels(made, rows, label_names)
    labels = spill(labels) if isinstance(labels, np.ndarray) else labels
    found = Rows(made, labels, spill(np.arange(1, rows + 1, dtype=np.int64)))
    if all(said is None for said, _ in taught):
        return found
    assert teacher is not None
    sizes = np.cumsum([0, *(len(kept) for _, kept in taught)])
    own = [labels[np.arange(a, b)] for a, b in pairwise(sizes)]
    chosen = [make_untaught(o, teacher.outputs) if s is None else s[k] for (s, k), o in zip(taught, own, strict=True)]
    return replace(found, taught=_concatenate(chosen))


def count_words(columns: Mapping[str, pa.ChunkedArray]) -> np.ndarray | None:
    """(N,) int64 words of each row; None for plain text."""
    words = columns.get("words")
    if words is None:
        return None
    sizes = [np.asarray(chunk.value_lengths().fill_null(0), dtype=np.int64) for chunk in words.chunks]
    return np.concatenate([np.zeros(0, np.int64), *sizes])


def _concatenate(parts: Sequence[LabelArray]) -> LabelArray:
    """Rows end to end."""
    if isinstance(parts[0], Ragged):
        lists = [part for part in parts if isinstance(part, Ragged)]
        offsets = np.concatenate([[0], np.cumsum(np.concatenate([part.lengths for part in lists]))])
        return Ragged(concatenate([part.values for part in lists]), offsets)
    return concatenate([part for part in parts if isinstance(part, np.ndarray)])


def join_unlabelled(task: Task, parts: Sequence[Rows], label_names: Sequence[str]) -> Rows:
    """Several sets of rows as one, without the labels that they may have, and with what a teacher said of them."""
    if len(parts) == 1 and task.find_unlabelled(parts[0].labels).all():
        return parts[0]
    made = {role: pa.chunked_array([c for r in parts for c in r.columns[role].chunks]) for role in parts[0].columns}
    numbers = np.concatenate([r.numbers for r in parts])
    labels, taught = task.make_missing_labels(made, len(numbers), label_names), None
    if any(part.taught is not None for part in parts):
        some = next(part.taught for part in parts if part.taught is not None)
        outputs = (some.values if isinstance(some, Ragged) else some).shape[1]
        said = [make_untaught(part.labels, outputs) if part.taught is None else part.taught for part in parts]
        taught = _concatenate(said)
    return Rows(made, labels, numbers, taught=taught)


def _frames(name: str, notes: list[str]) -> Iterator[tuple[str, Frame]]:
    """(what an error names, rows) of each file."""
    if name.startswith("hf:"):
        found = {split: Frame.from_dataset(rows) for split, rows in hub.read_hub(name[3:]).items()}
        yield _preferred(name, found)
        return
    if places.is_elsewhere(name):
        yield _preferred(name, places.open_source(name, notes).frames)
        return
    path = places.path_of(name)
    if not path.exists():
        raise make_unknown_error(name, path)
    if not path.is_dir():
        yield str(path), files.read_file(path, notes, plain=True)
        return
    if places.is_saved(path):
        yield _preferred(name, places.open_source(name, notes).frames)
        return
    held = [p for p in sorted(path.iterdir()) if p.is_file() and p.suffix.lower() in files.SUFFIXES]
    held = [p for p in held if p.name not in places.DESCRIPTIONS]
    by_split = {s: [p for p in held if p.stem.lower() in places.SPLITS[s]] for s in places.SPLITS}
    chosen = next((by_split[s] for s in PREFERRED if by_split[s]), held)
    if not chosen:
        raise UserError(
            "the folder has no file with text", where=str(path), do="known types: " + ", ".join(files.SUFFIXES)
        )
    if len(chosen) < len(held):
        notes.append(f"{name}: only {', '.join(p.name for p in chosen)} is read")
    for file in chosen:
        yield str(file), files.read_file(file, notes, plain=True)


def _preferred(name: str, found: Mapping[str, Frame]) -> tuple[str, Frame]:
    folded = {split.lower(): split for split in found}
    aliases = [alias for split in PREFERRED for alias in places.SPLITS[split]]
    split = next((folded[alias] for alias in aliases if alias in folded), None)
    if split is None:
        raise UserError("no unlabelled or train split", where=name, why="found " + ", ".join(map(printable, found)))
    return f"{name}: {split}", found[split]


def _columns(
    frame: Frame, task: Task, roles: Mapping[str, str], wanted: Sequence[str], where: str, notes: list[str]
) -> dict[str, str]:
    """role → column; "label" is one that looks like labels. Raises UserError where a text is missing."""
    same = all(roles[role] in frame.columns for role in wanted)
    asked = RequestedColumns(*[roles[role] for role in wanted]) if same and len(wanted) <= 2 else RequestedColumns()
    if "text_pair" in wanted and list(frame.columns) == ["text"]:
        raise UserError(
            "each row needs two texts", where=where, why="found single texts", do="write both as columns of a table"
        )
    usual = TaskColumns(wanted, (), task.usual, task.usual_labels)
    found, more = columns.roles(frame, usual, asked, where)
    notes += more
    label = roles.get("label")
    return found | ({"label": label} if label is not None and label in frame.columns else {})


def _is_blank(values: pa.ChunkedArray) -> np.ndarray:
    """(N,) bool: texts of white space alone. Lists of words are judged by `read_plain_text`."""
    if pa.types.is_nested(values.type):
        return np.zeros(len(values), dtype=bool)
    trimmed = pc.utf8_length(pc.utf8_trim_whitespace(values))  # type: ignore[attr-defined]
    return np.asarray(pc.fill_null(pc.equal(trimmed, 0), False).to_numpy(), dtype=bool)  # type: ignore[attr-defined]
