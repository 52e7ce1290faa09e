"""Which column is the text, which the label: told by name, or by the names that data sets usually have."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from compress.data.reading.frame import CHUNK, Column, Frame
from compress.data.reading.names import FOR_TEXT
from compress.errors import UserError, did_you_mean, printable, suggest
from compress.storage.spill import note_read

TEXT = ("text", "sentence", "review", "content", "utterance", "query", "question", "comment", "tweet", "message")
TEXT += ("document", "body", "passage", "sentence1", "text1", "title")
PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("text", "text_pair"),
    ("text1", "text2"),
    ("sentence_a", "sentence_b"),
    ("question", "sentence"),
    ("question", "passage"),
    ("query", "passage"),
    ("query", "document"),
    ("query", "positive"),
    ("anchor", "positive"),
)
LABEL = ("label", "labels", "intent", "category", "target", "class", "sentiment", "gold_label", "topic", "emotion")

SOURCE = ("source", "domain", "genre", "origin", "subset", "corpus", "category", "group")
"""Usual names of a column that says where a row is from."""

TEXT_FLAGS = ("--text-column", "--text-pair-column")
"""Flags of commands that name the first and the second text role of a task."""


@dataclass(frozen=True)
class RequestedColumns:
    """Columns that the user, or the data's own description, named; None: to be inferred."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None


@dataclass(frozen=True)
class TaskColumns:
    """What a task reads. texts: its text roles, the first named by `RequestedColumns.text`, the second by `text_pair`.

    optional: of them, those that may be missing.  usual: role → usual column names, for roles that are not text and
    text_pair.  labels: usual names of the label column.
    """

    texts: Sequence[str] = ("text",)
    optional: Sequence[str] = ()
    usual: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Sequence[str] = LABEL


def has_pair(frame: Frame, asked: RequestedColumns) -> bool:
    """Whether two texts are named, or usual column names come as a pair."""
    return asked.text_pair is not None or (asked.text is None and _usual_pair(frame) is not None)


def label_of(frame: Frame, names: Sequence[str]) -> str | None:
    """The column that has the first of these usual names of labels."""
    return _usual(frame, names)


def holds_fractions(column: Column) -> bool:
    """Whether a column holds numbers that are not all whole: scores rather than classes. Text of numbers counts too.

    None, NaN and blank text are missing labels, and decide nothing.
    """
    if not isinstance(column, list) and not (pa.types.is_floating(column.type) or is_text(column)):
        return False
    fraction = False
    for value in values_in(column):
        if value is None or value != value or (isinstance(value, str) and not value.strip()):
            continue
        try:
            number = float("no" if isinstance(value, bool) else value)
        except (TypeError, ValueError, OverflowError):
            return False
        fraction = fraction or not number.is_integer()
    return fraction


def roles(frame: Frame, wanted: TaskColumns, asked: RequestedColumns, where: str) -> tuple[dict[str, str], list[str]]:
    """role → column for the wanted text roles and "label", and notes about what was inferred beyond the usual names.

    "label" is left out when nothing looks like a label: the caller knows whether it needs one. Raises UserError
    naming the columns there are.
    """
    found: dict[str, str] = {}
    notes: list[str] = []
    pair = "text_pair" in wanted.texts and ("text_pair" not in wanted.optional or has_pair(frame, asked))
    texts = [role for role in wanted.texts if role != "text_pair" or pair]
    given = dict(zip(texts, (asked.text, asked.text_pair), strict=False)) | {"label": asked.label}
    for role in (*texts, "label"):
        name = given.get(role)
        if name is not None:
            found[role] = _named(frame, name, role, where)
    if pair:
        _find_pair(frame, found, where)
    elif "text" in texts and "text" not in found:
        found["text"] = _find_text(frame, where, notes, wanted.labels)
    flags = dict(zip(texts, TEXT_FLAGS, strict=False))
    for role in texts:
        if role not in found and not (role in wanted.optional and _usual(frame, wanted.usual[role]) is None):
            found[role] = _find_usual(frame, role, flags.get(role), wanted.usual[role], where)
    if "label" not in found:
        name = _usual(frame, [name for name in wanted.labels if name not in found.values()])
        if name is not None and name not in found.values():
            found["label"] = name
    if len(set(found.values())) < len(found):
        shown = ", ".join(f"{role} = '{name}'" for role, name in found.items())
        raise UserError("the same column is given twice", where=where, why=printable(shown), do=format_columns(frame))
    return found, notes


def format_columns(frame: Frame) -> str:
    """`the columns are: a, b`."""
    return format_names(list(frame.columns))


def format_names(columns: Sequence[str]) -> str:
    """The same for any names."""
    shown = [printable(str(name), 40) for name in columns]
    names = [name if name == name.strip() else f"'{name}'" for name in shown]
    return "the columns are: " + ", ".join(names[:20]) + (" …" if len(names) > 20 else "")


def _named(frame: Frame, name: str, role: str, where: str) -> str:
    if name in frame.columns:
        return name
    near = suggest(name, frame.columns)
    do = format_columns(frame) if near is None else f"{near} ({format_columns(frame)})"
    raise UserError(f"{role.replace('_', ' ')} column '{printable(name, 60)}' not found", where=where, do=do)


def fold_name(name: str) -> str:
    """Without case, and without the blank that stands after a comma in a header written by hand."""
    return str(name).strip().lower()


def _usual(frame: Frame, names: Sequence[str]) -> str | None:
    folded = {fold_name(name): name for name in frame.columns}
    return next((folded[name] for name in names if name in folded), None)


def _usual_pair(frame: Frame) -> tuple[str, str] | None:
    folded = {fold_name(name): name for name in frame.columns}
    return next(((folded[a], folded[b]) for a, b in PAIRS if a in folded and b in folded), None)


def _find_pair(frame: Frame, found: dict[str, str], where: str) -> None:
    """Fill in "text" and "text_pair", by a usual pair of names."""
    if "text" in found and "text_pair" in found:
        return
    pairs = {a.lower(): b for a, b in PAIRS} if "text" in found else {b.lower(): a for a, b in PAIRS}
    if "text" in found or "text_pair" in found:
        have, miss = ("text", "text_pair") if "text" in found else ("text_pair", "text")
        partner = _usual(frame, [pairs.get(fold_name(found[have]), "")])
        if partner is None:
            raise _unknown(miss, TEXT_FLAGS[miss == "text_pair"], frame, where)
        found[miss] = partner
        return
    usual = _usual_pair(frame)
    if usual is None:
        do = f"name them with {' and '.join(TEXT_FLAGS)}; {format_columns(frame)}"
        raise UserError("cannot infer the two text columns", where=where, do=do)
    found["text"], found["text_pair"] = usual


def _find_usual(frame: Frame, role: str, flag: str | None, names: Sequence[str], where: str) -> str:
    name = _usual(frame, names)
    if name is None:
        raise _unknown(role, flag, frame, where)
    return name


def _find_text(frame: Frame, where: str, notes: list[str], labels: Sequence[str]) -> str:
    name = _usual(frame, TEXT)
    if name is not None:
        return name
    label = _usual(frame, labels)
    texts = [name for name, column in frame.columns.items() if name != label and is_text(column)]
    if len(texts) == 1:
        notes.append(f"text column: '{printable(texts[0], 60)}', the only column that contains text")
        return texts[0]
    raise _unknown("text", TEXT_FLAGS[0], frame, where)


def _unknown(role: str, flag: str | None, frame: Frame, where: str) -> UserError:
    do = format_columns(frame) if flag is None else f"name it with {flag}; {format_columns(frame)}"
    return UserError(f"cannot infer the {role.replace('_', ' ')} column", where=where, do=do)


def unknown_label(frame: Frame, where: str) -> UserError:
    """For rows that must have labels where no column looks like one."""
    if len(frame.columns) == 1:
        why = f"its only column is '{printable(str(next(iter(frame.columns))), 60)}'"
        return UserError("has no labels", where=where, why=why, do=f"give labelled rows; {FOR_TEXT}")
    return _unknown("label", "--label-column", frame, where)


def values_in(column: Column) -> Iterator[Any]:
    """The values of a column as Python objects, a few thousand at a time."""
    if isinstance(column, list):
        yield from column
        return
    for start in range(0, len(column), CHUNK):
        part = column.slice(start, CHUNK)
        note_read(part.nbytes)
        yield from part.to_pylist()


def is_text(column: Column) -> bool:
    """Whether a column holds strings (and nothing else but None)."""
    if isinstance(column, list):
        return False
    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def same_columns(frames: Mapping[str, Frame], chosen: Mapping[str, str], where: str) -> None:
    """Every split has the chosen columns; the label may be missing where rows are unlabelled. Raises UserError."""
    for split, frame in frames.items():
        for role, name in chosen.items():
            if name not in frame.columns and not (role == "label" and split == "unlabelled"):
                raise UserError(
                    f"split '{split}' has no column '{printable(name, 60)}'", where=where, do=format_columns(frame)
                )


def others(frames: Mapping[str, Frame], chosen: Mapping[str, str], asked: Iterable[str], where: str) -> list[str]:
    """The columns that rows are told apart by: those asked for, and the first usual one that says where a row is from.

    asked: names; as a mapping, to the flag that an error blames instead of --slice.

    Raises UserError for one that no split has.
    """
    known = {str(name): name for frame in frames.values() for name in frame.columns}
    for name in asked:
        if name not in known:
            near = did_you_mean(name, known)
            shown = printable(name, 60)
            flag = asked[name] if isinstance(asked, Mapping) else "--slice"
            raise UserError(f"column '{shown}' not found in {where}", where=f"{flag} {shown}", do=near)
    folded = {name.lower(): name for name in known if name not in chosen.values()}
    usual = next((folded[name] for name in SOURCE if name in folded), None)
    return list(dict.fromkeys([*asked, *([] if usual is None else [usual])]))
