"""Label columns → class numbers: ids, names, booleans; and all that can be wrong with them, with counts and rows."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from compress.data.reading.frame import Column
from compress.data.tables.label_order import Labels, is_unnamed, note_alike, reconcile, show_names
from compress.data.tables.table import UNLABELLED, first_rows
from compress.errors import UserError, format_count, list_some, nearest, printable
from compress.storage.spill import note_read, pieces

_WHOLE = re.compile(r"(-?[0-9]{1,18})(\.0+)?")  # what fits into 64 bits; "1.0" where a program made floats of it
_UNNAMED = re.compile(r"LABEL_([0-9]+)")
_AS_FLOATS = "the labels were written as 0.0, 1.0 …; read as whole numbers"
_MANY = 20  # above this many classes, a column in which most values differ is taken for something else


@dataclass
class Values:
    """A label column as codes into its distinct values. codes: (N,) int64, -1 where there is no label.

    bounds: of lists of labels end to end, (rows+1,) int64: where each row's list begins; None: one label a row.
    """

    distinct: list[Any]
    codes: np.ndarray
    bounds: np.ndarray | None = None

    def rows_of(self, value: Any) -> np.ndarray:
        """1-based rows that hold `value`."""
        at = np.flatnonzero(self.codes == self.distinct.index(value))
        return (at if self.bounds is None else np.unique(np.searchsorted(self.bounds, at, side="right") - 1)) + 1


def read_labels(
    columns: Mapping[str, Column],
    where: str,
    *,
    names: Sequence[str] | None = None,
    expected: Sequence[str] | None = None,
) -> Labels:
    """Label columns of all labelled splits → numbers.

    names: the labels in order of their ids, from the user or the data's description.  expected: the labels of a model
    that will be used with this data, in its order. A row without a label reads UNLABELLED. Raises UserError.
    """
    values = {split: distinct_values(column, f"{where}: {split}") for split, column in columns.items()}
    return number(values, where, names=names, expected=expected)


def number(
    values: dict[str, Values],
    where: str,
    *,
    names: Sequence[str] | None = None,
    expected: Sequence[str] | None = None,
) -> Labels:
    """The distinct values of all labelled splits → numbers of names: what `read_labels` does after reading."""
    out = Labels({}, [])
    _harmonise(values, names or expected or (), where, out)
    for split in [s for s in values if s != "train" and is_hidden(values[s])]:
        out.hidden.append(split)
        del values[split]
    if "train" in values:
        _check_variety(values["train"], where)
    found = _names(values, names, expected, where, out)
    note_alike(found, out.notes)
    judged = [values["train"]] if "train" in values else list(values.values())
    known = set(found)
    by_name = not is_unnamed(found) and all(str(v) in known for column in judged for v in column.distinct)
    for split, column in values.items():
        judged_by_train = "train" in values and split != "train"
        out.numbers[split] = _number(column, found, f"{where}: {split}", by_name, judged_by_train)
    out.names = reconcile(out, found, expected, where)
    train = out.numbers.get("train")
    if isinstance(train, np.ndarray):
        _note_balance(out, train, None if values["train"].bounds is None else "in the lists of train")
    return out


# --- reading a column -------------------------------------------------------------------------------------------


def distinct_values(column: Column, where: str) -> Values:
    """The values of one column; NaN, None and empty text count as no label."""
    if isinstance(column, list):
        raise _mixed(column, where)
    kind = column.type
    if pa.types.is_nested(kind) and not pa.types.is_dictionary(kind):
        raise UserError("the labels are lists or objects, but each row needs one label", where=where, why=str(kind))
    if pa.types.is_null(kind):
        return Values([], np.full(len(column), -1, dtype=np.int64))
    raw, codes = _codes(column)
    keep = [i for i, value in enumerate(raw) if not _is_missing(value)]
    renumber = np.full(len(raw) + 1, -1, dtype=np.int64)
    renumber[keep] = np.arange(len(keep))
    return Values([raw[i] for i in keep], renumber[codes])


def _codes(column: pa.ChunkedArray) -> tuple[list[Any], np.ndarray]:
    """(distinct values in the order of their first rows, (N,) int64 of each row's place among them, -1 for null).

    Chunk by chunk: a large column never is in memory as a whole."""
    place: dict[Any, int] = {}
    raw: list[Any] = []
    codes = np.empty(len(column), dtype=np.int64)
    start = 0
    for chunk in column.chunks:
        encoded = chunk if pa.types.is_dictionary(column.type) else chunk.dictionary_encode()
        note_read(chunk.nbytes)
        values = encoded.dictionary.to_pylist()
        to = np.full(len(values) + 1, -1, dtype=np.int64)
        for i, value in enumerate(values):
            key = (type(value), value) if value == value else (type(value), "nan")
            if key not in place:
                place[key] = len(raw)
                raw.append(value)
            to[i] = place[key]
        codes[start : start + len(chunk)] = to[np.asarray(encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False))]
        start += len(chunk)
    return raw, codes


def _is_missing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _mixed(column: Sequence[Any], where: str) -> UserError:
    """Several types in one column: how many of each, and where."""
    rows: dict[str, list[int]] = {}
    for number, value in enumerate(column, start=1):
        if value is not None:
            rows.setdefault(type(value).__name__, []).append(number)
    kinds = ", ".join(f"{len(at):,} {kind} ({first_rows(at)})" for kind, at in sorted(rows.items()))
    if len(rows) == 1:  # numbers above 64 bits, or lists of this and that
        return UserError("these values cannot be labels", where=where, why=kinds, do="name another label column")
    return UserError("the labels have mixed types", where=where, why=kinds, do="write all labels in the same form")


def _harmonise(values: Mapping[str, Values], known: Sequence[str], where: str, out: Labels) -> None:
    """Make distinct values int or str throughout: whole floats → int, booleans → names, digits in text → int."""
    every = [value for column in values.values() for value in column.distinct]
    if any(isinstance(v, float) for v in every):
        broken = [(s, v) for s, c in values.items() for v in c.distinct if isinstance(v, float) and not v.is_integer()]
        if broken:
            split, value = broken[0]
            raise UserError(
                f"label {value} is not a class",
                where=f"{where}: {split}",
                why=f"{first_rows(values[split].rows_of(value))}; scores belong to a regression task",
                do="use --task regression, or name another label column",
            )
        out.notes.append(_AS_FLOATS)
        _convert(values, lambda v: int(v) if isinstance(v, float) else v)
    if any(isinstance(v, bool) for v in every):
        _convert(values, lambda v: str(v).lower() if isinstance(v, bool) else v)
    texts = [v for c in values.values() for v in c.distinct if isinstance(v, str)]
    if texts and all(_WHOLE.fullmatch(v) for v in texts) and not set(texts) <= set(known):
        if any("." in v for v in texts):
            out.notes.append(_AS_FLOATS)
        _convert(values, lambda v: int(v.partition(".")[0]) if isinstance(v, str) else v)
    kinds = {split: {type(v).__name__ for v in c.distinct} for split, c in values.items() if c.distinct}
    if len(set(map(frozenset, kinds.values()))) > 1:
        shown = ", ".join(f"{split}: {'/'.join(sorted(k))}" for split, k in kinds.items())
        raise UserError("the splits write their labels differently", where=where, why=shown)


def _convert(values: Mapping[str, Values], change: Any) -> None:
    for column in values.values():
        changed = [change(value) for value in column.distinct]
        column.distinct = list(dict.fromkeys(changed))
        if changed:
            place = {value: i for i, value in enumerate(column.distinct)}
            to = np.array([place[value] for value in changed] + [-1])
            column.codes = to[column.codes]


def is_hidden(column: Values) -> bool:
    """Whether the labels of a whole split are withheld, as benchmarks do with their test sets."""
    return len(column.codes) > 0 and (not column.distinct or column.distinct == [-1])


def _check_variety(train: Values, where: str) -> None:
    classes, rows = len(train.distinct), int((train.codes >= 0).sum())
    if classes == 1:
        only = printable(str(train.distinct[0]), 60)
        what = "every train row has the same label" if train.bounds is None else "there is only one label in train,"
        raise UserError(f"{what} '{only}'", where=where, do="at least two are needed")
    if classes > _MANY and classes > rows / 2:
        raise UserError(
            "this column does not look like labels",
            where=where,
            why=f"{classes:,} different values in {format_count(rows)}",
            do="name the label column",
        )


# --- names ------------------------------------------------------------------------------------------------------


def _names(
    values: Mapping[str, Values], names: Sequence[str] | None, expected: Sequence[str] | None, where: str, out: Labels
) -> list[str]:
    """The label names in the order of their ids, as the data means them."""
    if names is not None:
        if len(set(names)) != len(names) or len(names) < 2:
            raise UserError("there must be at least two label names, all different", where=where, why=show_names(names))
        return list(names)
    source = values.get("train")
    seen = source.distinct if source else list({v: None for c in values.values() for v in c.distinct})
    if not seen:
        if expected:
            return list(expected)
        raise UserError("no row has a label", where=where)
    if isinstance(seen[0], str):
        if source is None and expected and set(seen) <= set(expected):
            return list(expected)
        return sorted(seen, key=_order)
    if expected and {str(v) for v in seen} <= set(expected):  # names such as the stars 1 to 5
        return list(expected)
    bad = sorted(v for v in seen if v < 0)
    if bad and source:
        raise UserError(
            f"label {bad[0]} in {format_count(len(source.rows_of(bad[0])))}",
            where=f"{where}: train",
            why=f"{first_rows(source.rows_of(bad[0]))}; ids start at 0, and -1 usually marks a withheld label",
            do="remove these rows, or name the labels in order with --labels",
        )
    count = max(seen) + 1
    if source and len(seen) < count:
        if expected and count <= len(expected):
            return list(expected)
        numbers = sorted(seen)
        in_order = ",".join(map(str, numbers[:6])) + ",…" * (len(numbers) > 6)
        raise UserError(
            "the labels are whole numbers, but not 0 to n-1",
            where=where,
            why=f"found {list_some(numbers, 10)}",
            do=f"name the classes (--labels {in_order}); for scores, --task regression",
        )
    if not source and expected and count <= len(expected):
        return list(expected)
    return [str(v) for v in range(count)]


def _order(name: str) -> tuple[int, str]:
    """By the alphabet, but LABEL_10 after LABEL_9."""
    found = _UNNAMED.fullmatch(name)
    return (int(found[1]), "") if found else (-1, name)


def _number(column: Values, names: Sequence[str], where: str, by_name: bool, judged_by_train: bool) -> np.ndarray:
    """Codes → label numbers. by_name: the values are names, even where they are numbers; else ids 0..n-1."""
    place = {name: i for i, name in enumerate(names)}
    unknown = []
    to = [UNLABELLED] * (len(column.distinct) + 1)
    for i, value in enumerate(column.distinct):
        if isinstance(value, int) and not by_name and 0 <= value < len(names):
            to[i] = value
        elif str(value) in place:
            to[i] = place[str(value)]
        else:
            unknown.append(value)
    if unknown:
        raise _unknown(column, unknown, names, where, by_name, judged_by_train)
    return np.array(to, dtype=np.int64)[column.codes]


def _unknown(
    column: Values, unknown: Sequence[Any], names: Sequence[str], where: str, by_name: bool, judged_by_train: bool
) -> UserError:
    parts = []
    for value in unknown[:3]:
        rows = column.rows_of(value)
        near = nearest(str(value), names) if isinstance(value, str) else None
        hint = f", near '{printable(near, 40)}'" if near else ""
        parts.append(f"'{printable(str(value), 40)}' in {format_count(len(rows))} ({first_rows(rows)}{hint})")
    more = f" and {len(unknown) - 3} more" if len(unknown) > 3 else ""
    ids = not by_name and all(isinstance(v, int) for v in unknown)
    what = "label ids outside the range" if ids else "unknown labels"
    if judged_by_train and not ids:
        what = "labels that do not occur in train"
    return UserError(
        what,
        where=where,
        why="; ".join(parts) + more,
        do=f"give the names ({show_names(names)}), or their ids 0 to {len(names) - 1}"
        if ids
        else f"known: {show_names(names)}",
    )


def _note_balance(out: Labels, train: np.ndarray, lists: str | None) -> None:
    """What is worth knowing of the labels of train; in lists it is nothing new that most tags are O."""
    counts: Counter[int] = Counter()
    for piece in pieces(train):
        counts.update(piece[piece >= 0].tolist())
    total = sum(counts.values())
    if not total:
        return
    most, rows = counts.most_common(1)[0]
    if rows > 0.9 * total and lists is None:
        name = printable(out.names[most], 40)
        out.notes.append(
            f"{100 * rows / total:.1f} % of the train rows are '{name}': always predicting it is as accurate"
        )
    empty = [name for i, name in enumerate(out.names) if i not in counts]
    if empty:
        place = "no train row has the label" if lists is None else f"these labels do not occur {lists}:"
        out.notes.append(f"{place} {show_names(empty)}")
