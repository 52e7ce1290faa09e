"""Columns of lists of labels: tags, one for each word, and sets of labels, any number of them a row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from compress.data.batches.ragged import Ragged
from compress.data.reading.frame import Column
from compress.data.tables.label_order import Labels, show_names
from compress.data.tables.labels import Values, distinct_values, is_hidden, number
from compress.data.tables.table import UNLABELLED, first_rows
from compress.errors import UserError, format_count, printable
from evaluation.quality.entities import repair, scheme_of, split_tag

BadTags = Literal["refuse", "repair"]
_BITS = (0, 1, "0", "1")


def is_list(column: Column) -> bool:
    """Whether a column holds lists (and nothing else but None)."""
    return has_lists(column) and (not isinstance(column, list) or _first_other(column) is None)


def has_lists(column: Column) -> bool:
    """Whether a column holds lists, if not in every row."""
    if isinstance(column, list):
        return any(isinstance(v, list) for v in column)
    kind = column.type
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _first_other(column: list[Any]) -> int | None:
    """The place of the first value that is neither a list nor None."""
    return next((i for i, v in enumerate(column) if v is not None and not isinstance(v, list)), None)


def lists(column: Column, where: str, what: str) -> tuple[Column, np.ndarray, np.ndarray]:
    """(all items end to end, (N+1,) int64 bounds, (N,) bool: rows without a list). Raises UserError for no lists.

    what: what the items are called, `tags`.
    """
    if not is_list(column):
        other = _first_other(column) if isinstance(column, list) else None
        if other is not None:
            why = f"row {other + 1} has {printable(repr(column[other]), 60)}"
        else:
            why = f"the column contains {'no lists' if isinstance(column, list) else column.type}"
        raise UserError(f"each row needs a list of {what}", where=where, why=why)
    if isinstance(column, list):
        missing = np.array([value is None for value in column], dtype=bool)
        items: Column = [item for value in column for item in value or ()]
        lengths = np.array([len(value or ()) for value in column], dtype=np.int64)
    else:
        missing = np.asarray(column.is_null().to_numpy(), dtype=bool)
        chunks = [chunk.drop_null() for chunk in column.chunks]
        flat = [chunk.flatten() for chunk in chunks]
        items = pa.chunked_array(flat, column.type.value_type)
        lengths = np.zeros(len(column), dtype=np.int64)
        sizes = [np.asarray(chunk.value_lengths(), dtype=np.int64) for chunk in chunks]
        lengths[~missing] = np.concatenate([np.zeros(0, np.int64), *sizes])
    return items, np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]), missing


def _values(column: Column, where: str, what: str) -> tuple[Values, np.ndarray]:
    items, bounds, missing = lists(column, where, what)
    found = distinct_values(items, where)
    return Values(found.distinct, found.codes, bounds), missing


# --- tags -------------------------------------------------------------------------------------------------------


def read_tags(
    columns: Mapping[str, Column],
    where: str,
    *,
    names: Sequence[str] | None = None,
    expected: Sequence[str] | None = None,
    bad_tags: BadTags = "refuse",
) -> Labels:
    """Columns of tag lists → `Ragged` of tag numbers. A list that is missing is empty, a tag that is reads UNLABELLED.

    Tags of a chunk scheme (B-PER, I-PER …; IOB2 or BIOES) must be legal sequences: bad_tags says whether others are
    refused, with row and word, or repaired and told. Other arguments, and errors, as `labels.read_labels`.
    """
    values = {split: _values(column, f"{where}: {split}", "tags")[0] for split, column in columns.items()}
    bounds = {split: v.bounds for split, v in values.items()}
    out = number(values, where, names=names, expected=expected)
    fixed = names is not None or expected is not None
    tags: dict[str, Any] = {}
    for split, numbers in out.numbers.items():
        offsets = bounds[split]
        assert isinstance(numbers, np.ndarray)
        assert offsets is not None
        tags[split] = _legal(Ragged(numbers, offsets), out, f"{where}: {split}", bad_tags, fixed)
    out.numbers = tags
    return out


def _legal(tags: Ragged, out: Labels, where: str, bad_tags: BadTags, fixed: bool) -> Ragged:
    """The tags as legal sequences of their scheme; `out` takes the note and a name that a repair needs."""
    scheme = scheme_of(out.names)
    if scheme is None:
        return tags
    wrong = illegal(tags, out.names)
    rows = np.flatnonzero(tags.rows_with(wrong) & ~tags.rows_with(tags.values == UNLABELLED))  # these have no label
    if not len(rows):
        return tags
    told = f"{format_count(len(rows))} with tags that {scheme.upper()} does not allow"
    if bad_tags == "refuse":
        raise UserError(
            f"{told} ({first_rows(rows + 1)})",
            where=where,
            why=_why(tags, out.names, int(tags.offsets[rows[0]] + np.argmax(wrong[tags.offsets[rows[0]] :]))),
            do="repair them with --bad-tags repair (data.bad_tags: repair), or correct them",
        )
    values = tags.values.copy()
    for row in rows.tolist():
        start, end = int(tags.offsets[row]), int(tags.offsets[row + 1])
        mended = repair([out.names[i] for i in values[start:end].tolist()], scheme)
        for name in mended:
            if name not in out.names:
                if fixed:
                    raise UserError(
                        f"repairing needs the tag '{printable(name, 40)}', which is not among the labels",
                        where=f"{where}: row {row + 1}",
                        why=f"known: {show_names(out.names)}",
                    )
                out.names.append(name)
        values[start:end] = [out.names.index(name) for name in mended]
    out.notes.append(f"{where}: {told} ({first_rows(rows + 1)}), repaired")
    return Ragged(values, tags.offsets)


def illegal(tags: Ragged, names: Sequence[str]) -> np.ndarray:
    """(W,) bool: tags that their scheme does not allow where they stand; nowhere for tags of no chunk scheme.

    I- (and E- of BIOES) must follow B- or I- of its own type; in BIOES, B- and I- must be followed by I- or E- of it.
    """
    scheme = scheme_of(names)
    wrong = np.zeros(len(tags.values), dtype=bool)
    if scheme is None or not len(wrong):
        return wrong
    pieces = [*(split_tag(name, scheme) for name in names), ("O", "_")]  # the last one for a tag that is missing
    values = np.where(tags.values == UNLABELLED, len(names), tags.values)
    types = {kind: i for i, kind in enumerate(dict.fromkeys(kind for _, kind in pieces))}
    kind = np.array([types[kind] for _, kind in pieces])[values]
    opens = np.array([prefix in "BI" for prefix, _ in pieces])[values]  # an entity that may go on
    inner = np.array([prefix in "IE" for prefix, _ in pieces])[values]  # part of one that began before
    joined = np.zeros(len(wrong), dtype=bool)  # whether a tag goes on where the one before it left off
    joined[1:] = opens[:-1] & inner[1:] & (kind[:-1] == kind[1:])
    starts = tags.offsets[:-1][tags.lengths > 0]
    joined[starts] = False
    wrong = inner & ~joined
    if scheme == "bioes":
        followed = np.append(joined[1:], False)
        wrong |= opens & ~followed
    return wrong


def _why(tags: Ragged, names: Sequence[str], at: int) -> str:
    row = int(np.searchsorted(tags.offsets, at, side="right")) - 1
    word = at - int(tags.offsets[row])
    before, tag = (names[int(tags.values[i])] if i >= 0 else "" for i in (at - 1, at))
    place = f"follows '{printable(before, 40)}'" if word else "begins the row"
    return f"row {row + 1}, word {word + 1}: '{printable(tag, 40)}' {place}"


# --- sets of labels ---------------------------------------------------------------------------------------------


def read_label_sets(
    columns: Mapping[str, Column],
    where: str,
    *,
    names: Sequence[str] | None = None,
    expected: Sequence[str] | None = None,
) -> Labels:
    """Columns of lists of labels → (N, C) float32 of 0 and 1; NaN throughout a row that has no list.

    An empty list is a row to which no label applies. A list may also have a 0 or 1 for each label. Arguments and errors
    as `labels.read_labels`.
    """
    read = {split: _values(column, f"{where}: {split}", "labels") for split, column in columns.items()}
    values = {split: found for split, (found, _) in read.items()}
    hidden = [split for split, (_, missing) in read.items() if split != "train" and len(missing) and missing.all()]
    values = {split: found for split, found in values.items() if split not in hidden}
    known = names or expected or ()
    judged = {s: (v, read[s][1]) for s, v in values.items() if s == "train" or not is_hidden(v)}
    width = _find_width(judged, known, where)
    if width is not None:
        if known and len(known) != width:
            raise UserError(
                f"each list has a 0 or 1 for {width} labels, but {len(known)} are known",
                where=where,
                why=show_names(known),
                do="use data with these labels, or correct --labels",
            )
        values |= {split: _find_applying(found, width) for split, (found, _) in judged.items()}
    out = number(dict(values), where, names=names, expected=expected)
    if width is not None:
        out.notes.insert(0, f"each row has a 0 or 1 for each of {width} labels; those with a 1 apply")
    out.hidden += hidden
    sets: dict[str, Any] = {}
    for split, numbers in out.numbers.items():
        found, missing = values[split], read[split][1]
        assert found.bounds is not None
        assert isinstance(numbers, np.ndarray)
        _no_gaps(numbers, found.bounds, f"{where}: {split}")
        made = np.zeros((len(missing), len(out.names)), dtype=np.float32)
        made[np.repeat(np.arange(len(missing)), np.diff(found.bounds)), numbers] = 1.0
        made[missing] = np.nan
        sets[split] = made
    out.numbers = sets
    return out


def _find_width(read: Mapping[str, tuple[Values, np.ndarray]], known: Sequence[str], where: str) -> int | None:
    """How many labels there are where each row has a 0 or 1 for every one of them, as transformers' `multi_label`
    models are trained on; None where the lists hold the labels that apply.

    read: split → its lists, and (N,) bool, the rows without one.  Raises UserError for lists of 0 and 1 that are
    neither.
    """
    widths: set[int] = set()
    twice = False  # no list of ids has one of them twice
    for found, missing in read.values():
        if (found.codes < 0).any() or not all(value in _BITS for value in found.distinct):
            return None
        assert found.bounds is not None
        lengths = np.diff(found.bounds)
        widths.update(np.unique(lengths[~missing]).tolist())
        rows = np.repeat(np.arange(len(lengths)), lengths)
        twice = twice or len(np.unique(len(found.distinct) * rows + found.codes)) < len(rows)
    if len(widths) == 1 and max(widths) > 1 and (twice or not known or len(known) == 2):
        return widths.pop()  # as ids, two in each row would be both labels everywhere
    if twice:
        raise UserError(
            "some lists have a 0 or 1 for each label, but not all are equally long",
            where=where,
            why=f"they have {', '.join(map(str, sorted(widths)))} values",
            do="write a 0 or 1 for each label in every row, or only the labels that apply",
        )
    return None


def _find_applying(found: Values, width: int) -> Values:
    """Rows of a 0 or 1 for each of `width` labels → the ids of those that apply."""
    assert found.bounds is not None
    lengths = np.diff(found.bounds)
    ones = np.array([value in (1, "1") for value in found.distinct], dtype=bool)[found.codes]
    counts = np.bincount(np.repeat(np.arange(len(lengths)), lengths)[ones], minlength=len(lengths))
    places = np.arange(len(found.codes)) % width
    return Values(list(range(width)), places[ones], np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)]))


def _no_gaps(numbers: np.ndarray, bounds: np.ndarray, where: str) -> None:
    empty = np.flatnonzero(numbers == UNLABELLED)
    if len(empty):
        rows = np.unique(np.searchsorted(bounds, empty, side="right"))
        raise UserError(f"{format_count(len(rows))} with an empty label in the list ({first_rows(rows)})", where=where)
