"""What a teacher said of each row, as columns of the data: probabilities, logits, scores or labels → logits; vectors.

The teacher may be anything that wrote them: a model behind an API, an ensemble, several annotators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np

from compress.data.batches.ragged import LabelArray, Ragged
from compress.data.reading.columns import values_in
from compress.data.reading.frame import CHUNK, Column, Frame
from compress.data.tables.table import first_rows
from compress.data.task import Task
from compress.errors import UserError, did_you_mean, format_count, printable
from compress.storage.spill import Spool, spill

Form = Literal["auto", "probabilities", "logits", "scores", "labels", "vectors"]
LEAST = 1e-6
"""The smallest probability: its logarithm stays finite."""
SUM_ERROR = 0.02
"""How far the probabilities of a row may be from adding up to 1, since files round them; they are scaled then."""
LOOKED_AT = 1000  # rows that tell what the columns hold


@dataclass(frozen=True)
class TeacherColumns:
    """names: of the columns: one, one for each class or dimension, or one for each of several annotators.  noise: share
    of wrong ones among labels."""

    names: tuple[str, ...]
    form: Form = "auto"
    noise: float = 0.0


class TeacherReader:
    """Reads the columns of all splits of one table alike. labels: names, in the order of their ids; of a task of scores
    none."""

    def __init__(self, asked: TeacherColumns, task: Task, labels: Sequence[str]) -> None:
        kind, self.problem = task.head
        if kind == "question_answering" or getattr(task, "chunked", False):
            what = "chunks of long texts" if kind != "question_answering" else "question answering"
            do = "use --long-text cut" if kind != "question_answering" else "give answers as the label column"
            raise UserError(f"teacher columns are not supported for {what}", where="--teacher-column", do=do)
        self.asked, self.labels, self.by_word = asked, [str(name) for name in labels], kind == "token_classification"
        self.by_vector = kind == "embedding"
        scores = self.problem == "regression"
        if self.by_vector and asked.form != "auto":
            what = f"teacher columns of {task.kind} hold vectors, not {asked.form}"
            raise UserError(what, where="--teacher-values", do="remove --teacher-values")
        if asked.form != "auto" and (asked.form == "scores") != scores:
            do = "remove --teacher-values" if scores else "use probabilities, logits or labels"
            what = f"teacher columns of {task.kind} cannot hold {asked.form}"
            raise UserError(what, where="--teacher-values", do=do)
        self.outputs = 1 if self.by_vector else task.count_outputs(labels)  # of vectors, the first says how many
        self.places = {name: i for i, name in enumerate(self.labels)}
        self.form: Form = "scores" if scores else "vectors" if self.by_vector else asked.form
        self.split_columns = False
        self._settled = False
        if asked.noise and self.form not in ("auto", "labels"):
            do = "remove it, or give labels"
            raise UserError("only applies to labels", where="--teacher-noise", why=f"found {self.form}", do=do)

    def read(self, frame: Frame, where: str, lengths: np.ndarray | None = None) -> LabelArray | None:
        """(N, C) float32 logits, of tags a `Ragged` (W, C), of texts vectors (N, D); NaN for rows of which the teacher
        said nothing. None where the rows have none of the columns. lengths: (N,) words of each row, of tags.

        Raises UserError for cells that are no such values, with counts and the first rows.
        """
        there = [name for name in self.asked.names if name in frame.columns]
        if not there:
            return None
        if len(there) < len(self.asked.names):
            lost = next(name for name in self.asked.names if name not in frame.columns)
            do = did_you_mean(lost, [str(name) for name in frame.columns])
            raise UserError(f"teacher column '{printable(lost, 60)}' not found", where=where, do=do)
        columns = [frame.columns[name] for name in there]
        if not self._settled:
            self._settle(columns, where)
        return self._words(columns, where, lengths) if self.by_word else self._rows(columns, frame.rows, where)

    # --- what the columns hold --------------------------------------------------------------------------------

    def _settle(self, columns: Sequence[Column], where: str) -> None:
        """Decide once what the columns hold, from the first rows that have a value."""
        cells = [_first(column) for column in columns]
        items = [item for column in cells for cell in column for item in (_list_of(cell) if self.by_word else [cell])]
        if not items:
            raise UserError("the teacher columns are empty", where=where)
        if self.by_vector:
            self._settle_vectors(columns, items, where)
            return
        numbers = [_number(item) for item in items]
        single = None not in numbers
        whole = all(isinstance(number, int) for number in numbers)
        self.split_columns = (
            self.problem != "regression" and self.form != "labels" and len(columns) == self.outputs > 1 and single
            and (self.form in ("probabilities", "logits") or not whole)
        )  # fmt: skip
        if self.split_columns:
            self._order = self._match_columns()
        if self.form == "auto":
            self.form = self._guess(items, cells)
        if self.asked.noise and self.form != "labels":
            why = f"the columns hold {self.form}"
            raise UserError("only applies to labels", where="--teacher-noise", why=why, do="remove it")
        self._settled = True

    def _settle_vectors(self, columns: Sequence[Column], items: Sequence[Any], where: str) -> None:
        """How many dimensions there are: of the first vector, or a column each."""
        self.split_columns = len(columns) > 1 and not isinstance(items[0], list)
        if self.split_columns:
            self.outputs, self._order = len(columns), list(range(len(columns)))
        elif len(columns) > 1 or not isinstance(items[0], list):
            why = f"found {len(columns)} columns of lists" if len(columns) > 1 else (
                f"the first value is {printable(repr(items[0]), 40)}"
            )  # fmt: skip
            do = "name one column with a list of numbers for each text, or one column per dimension"
            raise UserError("the teacher columns hold no vectors", where=where, why=why, do=do)
        else:
            self.outputs = len(items[0])
        self._settled = True

    def _guess(self, items: Sequence[Any], cells: Sequence[Sequence[Any]]) -> Form:
        if self.split_columns:
            numbers = [float(_number(cell) or 0) for column in cells for cell in column]
        elif all(_is_label(item, several=self.problem == "multi_label") for item in items):
            return "labels"
        else:
            numbers = [x for item in items for x in _values_of(item)]
        known = [x for x in numbers if math.isfinite(x)]
        return "probabilities" if all(-LEAST <= x <= 1 + LEAST for x in known) else "logits"

    def _match_columns(self) -> list[int]:
        """The place of each label among the columns: by the end of their names, else in their order."""
        names = [name.lower() for name in self.asked.names]
        found = []
        for label in self.labels:
            hits = [i for i, name in enumerate(names) if name == label.lower() or name.endswith(f"_{label.lower()}")]
            found += [hits[0] if len(hits) == 1 else -1]
        return found if sorted(found) == list(range(len(names))) else list(range(len(names)))

    # --- rows ---------------------------------------------------------------------------------------------------

    def _rows(self, columns: Sequence[Column], rows: int, where: str) -> np.ndarray:
        out, bad = Spool(np.float32, (self.outputs,)), _Problems(where)
        cells = enumerate(zip(*map(values_in, columns), strict=True), start=1)
        while part := [self._row(row, number, bad) for number, row in islice(cells, CHUNK)]:
            out.append(np.stack(part))
        bad.check()
        return out.finish() if rows else np.zeros((0, self.outputs), np.float32)

    def _row(self, cells: Sequence[Any], number: int, bad: _Problems) -> np.ndarray:
        """(C,) logits of what all columns say of one row."""
        if self.split_columns:
            if all(map(_is_missing, cells)):
                return self._nothing()
            found = [_number(cells[place]) for place in self._order]
            if self.by_vector:
                return self._vector(found, number, bad)
            return self._logits([math.nan if x is None else float(x) for x in found], number, bad)
        said = [self._item(cell, number, bad) for cell in cells if not _is_missing(cell)]
        return self._nothing() if not said else said[0] if len(said) == 1 else self._mean(said)

    def _words(self, columns: Sequence[Column], where: str, lengths: np.ndarray | None) -> Ragged:
        assert lengths is not None
        out, bad = Spool(np.float32, (self.outputs,)), _Problems(where)
        cells = zip(*map(values_in, columns), strict=True)
        for number, (row, words) in enumerate(zip(cells, lengths.tolist(), strict=True), start=1):
            lists = [_list_of(cell) for cell in row if not _is_missing(cell)]
            wrong = [items for items in lists if len(items) != words]
            if wrong:
                why = f"{len(wrong[0])} for {words} words"
                bad.add("with another number of teacher values than words", number, why)
            if wrong or not lists:
                out.append(np.full((words, self.outputs), np.nan, np.float32))
                continue
            if words:
                out.append(np.stack([self._row(items, number, bad) for items in zip(*lists, strict=True)]))
        bad.check()
        return Ragged(out.finish(), np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)]))

    def _item(self, cell: Any, number: int, bad: _Problems) -> np.ndarray:
        cell = _parsed(cell)
        if self.by_vector:
            return self._vector(cell if isinstance(cell, list) else [cell], number, bad)
        if self.form == "labels":
            return self._of_labels(cell, number, bad)
        try:
            return self._logits(self._numbers(cell, self.form), number, bad)
        except _Wrong as wrong:
            bad.add(wrong.what, number, wrong.why, wrong.do)
            return self._nothing()

    def _numbers(self, cell: Any, form: Form) -> list[float]:
        """The values of one cell in the order of the labels. Raises _Wrong."""
        cell = _parsed(cell)
        if isinstance(cell, list) and cell and isinstance(cell[0], Mapping) and {"label", "score"} <= set(cell[0]):
            cell = {one["label"]: one["score"] for one in cell}  # as pipelines of transformers answer
        if isinstance(cell, Mapping):
            unknown = next((k for k, v in cell.items() if str(k) not in self.places and v is not None), None)
            if unknown is not None:
                raise _Wrong("with an unknown class", f"'{printable(str(unknown), 40)}'", self._known(unknown))
            rest = math.nan if form == "logits" else 0.0
            named = {str(k): v for k, v in cell.items()}
            cell = [rest if named.get(name) is None else named[name] for name in self.labels]
        values = [math.nan if x is None else _number(x) for x in (cell if isinstance(cell, list) else [cell])]
        if None in values:
            shown = printable(repr(cell), 60)
            raise _Wrong("with a value that is not a number", f"the first is {shown}", "give numbers, or labels")
        if len(values) == 1 and self.outputs == 2 and self.problem == "single_label":  # of the second label
            second = float(values[0] or 0)
            values = [0.0 if form == "logits" else 1 - second, second]
        if len(values) != self.outputs:
            listed = printable(", ".join(self.labels[:8]), 120)
            why = f"{len(values)} values, {self.outputs} classes" + (f": {listed}" if listed else "")
            raise _Wrong("with another number of classes", why, "give one value for each class")
        return [float(x) for x in values if x is not None]

    def _of_labels(self, cell: Any, number: int, bad: _Problems) -> np.ndarray:
        """(C,) logits of a label, or labels, that are wrong at the stated rate."""
        several = self.problem == "multi_label"
        given = cell if several and isinstance(cell, list) else [cell]
        places = [self._place(one.strip() if isinstance(one, str) else one) for one in given]
        if None in places:
            unknown = given[places.index(None)]
            bad.add("with an unknown label", number, f"'{printable(str(unknown), 40)}'", self._known(unknown))
            return self._nothing()
        shares = np.full(self.outputs, self.asked.noise if several else self.asked.noise / max(1, self.outputs - 1))
        shares[[place for place in places if place is not None]] = 1 - self.asked.noise
        return _to_logits(shares, several)

    def _place(self, label: Any) -> int | None:
        whole = isinstance(label, bool) or (isinstance(label, float) and label.is_integer())
        text = str(int(label)) if whole else label
        if str(text) in self.places:
            return self.places[str(text)]
        number = int(text) if isinstance(text, int) or (isinstance(text, str) and text.isdecimal()) else -1
        return number if 0 <= number < self.outputs else None

    def _logits(self, values: Sequence[float], number: int, bad: _Problems) -> np.ndarray:
        row = np.asarray(values, dtype=np.float64)
        if not np.isfinite(row).all():
            bad.add("with NaN or infinity", number, f"[{', '.join(f'{x:g}' for x in row[:6])}]", "fill them in")
            return self._nothing()
        if self.form != "probabilities":
            return row.astype(np.float32)
        several = self.problem == "multi_label"
        total = float(row.sum())
        if row.min() < -LEAST or row.max() > 1 + SUM_ERROR:
            why, do = f"{row[(row < 0) | (row > 1)][0]:g}", "if these are logits, add --teacher-values logits"
            bad.add("with a probability outside 0 to 1", number, why, do)
        elif not several and abs(total - 1) > SUM_ERROR:
            do = "give the probabilities of all classes, or add --teacher-values logits"
            bad.add("whose probabilities do not add up to 1", number, f"the first adds up to {total:g}", do)
        else:
            return _to_logits(row if several else row / total, several)
        return self._nothing()

    def _vector(self, cell: Sequence[Any], number: int, bad: _Problems) -> np.ndarray:
        """(D,) of one text."""
        try:
            row = np.asarray(cell, dtype=np.float64)
        except (TypeError, ValueError):
            row = np.array([np.nan if (x := _number(value)) is None else x for value in cell])
        if row.shape != (self.outputs,):
            why = f"{row.size}, the first vector has {self.outputs}"
            bad.add("with another number of dimensions", number, why, "give vectors of one model")
        elif not np.isfinite(row).all():
            place = int(np.flatnonzero(~np.isfinite(row))[0])
            shown = printable(repr(cell[place]), 40)
            bad.add(
                "with a value that is not a finite number", number, f"dimension {place + 1} is {shown}", "fill it in"
            )
        elif not row.any():
            bad.add("with a vector of zeros", number, "it has no direction", "remove the row, or compute it again")
        else:
            return row.astype(np.float32)
        return self._nothing()

    def _mean(self, said: Sequence[np.ndarray]) -> np.ndarray:
        """Several opinions as one: the mean of their probabilities, or of scores."""
        rows = np.stack(said).astype(np.float64)
        if self.problem == "regression":
            return rows.mean(0).astype(np.float32)
        if self.problem == "multi_label":
            return _to_logits((1 / (1 + np.exp(-rows))).mean(0), several=True)
        shares = np.exp(rows - rows.max(1, keepdims=True))
        return _to_logits((shares / shares.sum(1, keepdims=True)).mean(0), several=False)

    def _nothing(self) -> np.ndarray:
        return np.full(self.outputs, np.nan, np.float32)

    def _known(self, name: Any) -> str:
        return did_you_mean(str(name), self.labels)

    # --- rows without -------------------------------------------------------------------------------------------

    def fill_in(self, taught: LabelArray, labels: LabelArray) -> tuple[LabelArray, int]:
        """(the logits, in which rows of which the teacher said nothing get their own label; how many got it).

        Rows that have no label either stay NaN.
        """
        values = taught.values if isinstance(taught, Ragged) else taught
        own = labels.values if isinstance(labels, Ragged) else labels
        gaps = np.flatnonzero(np.isnan(values).any(1))
        said = own[gaps] if own.ndim == 2 else own[gaps].reshape(-1, 1)
        known = ~np.isnan(said).any(1) if np.issubdtype(said.dtype, np.floating) else (said >= 0).all(1)
        gaps, said = gaps[known], said[known]
        if not len(gaps):
            return taught, 0
        filled = np.array(values)
        if self.problem == "single_label":
            shares = np.zeros((len(gaps), self.outputs))
            shares[np.arange(len(gaps)), said[:, 0]] = 1
            filled[gaps] = _to_logits(shares, several=False)
        else:
            filled[gaps] = said if self.problem == "regression" else _to_logits(said, several=True)
        rows = len(gaps)
        if isinstance(taught, Ragged):
            rows = len(np.unique(np.searchsorted(taught.offsets, gaps, side="right")))
            return Ragged(spill(filled), taught.offsets), rows
        return spill(filled), rows

    def describe(self, splits: Mapping[str, tuple[LabelArray, LabelArray]]) -> list[str]:
        """What was read. splits: name → (logits before they were filled in, labels)."""
        counts = ", ".join(f"{format_count(int((~find_untaught(t)).sum()))} of {s}" for s, (t, _) in splits.items())
        what = f"vectors of {self.outputs:,} dimensions" if self.by_vector else self.form
        who = f"column{'s' if len(self.asked.names) > 1 else ''} {_list_names(self.asked.names)}"
        noise = f" (assumed wrong: {self.asked.noise:.1%})" if self.asked.noise else ""
        notes = [f"teacher: {what} in {who}{noise}: {counts}"]
        rate = agreement_with_labels(*splits["train"]) if "train" in splits else None
        if rate is not None:
            notes.append(f"teacher: right on {rate[0]:.1%} of {rate[1]:,} labelled training rows")
        return notes


def _list_names(names: Sequence[str]) -> str:
    """All, or the first and last of many."""
    return ", ".join(names) if len(names) <= 10 else f"{names[0]} … {names[-1]}"


def make_untaught(labels: LabelArray, outputs: int) -> LabelArray:
    """The logits of rows of which the teacher said nothing."""
    values = np.full((len(labels.values if isinstance(labels, Ragged) else labels), outputs), np.nan, np.float32)
    return Ragged(values, labels.offsets) if isinstance(labels, Ragged) else values


def find_untaught(taught: LabelArray) -> np.ndarray:
    """(N,) bool: rows of which the teacher said nothing, or not of every word."""
    if isinstance(taught, Ragged):
        return taught.rows_with(np.asarray(np.isnan(taught.values).any(1)))
    return np.asarray(np.isnan(taught).any(1))


def agreement_with_labels(taught: LabelArray, labels: LabelArray) -> tuple[float, int] | None:
    """(share of rows, or words, of which the teacher says their label; how many have both); None for other tasks."""
    values = taught.values if isinstance(taught, Ragged) else taught
    own = labels.values if isinstance(labels, Ragged) else labels
    if own.ndim != 1 or not np.issubdtype(own.dtype, np.integer):
        return None
    both = np.flatnonzero((own >= 0) & ~np.isnan(values).any(1))
    return (float((values[both].argmax(1) == own[both]).mean()), len(both)) if len(both) else None


class _Wrong(Exception):  # noqa: N818 - becomes a UserError with counts
    def __init__(self, what: str, why: str, do: str) -> None:
        super().__init__(what)
        self.what, self.why, self.do = what, why, do


class _Problems:
    """What is wrong with the rows of a split: the first kind is reported, with how many rows have it."""

    def __init__(self, where: str) -> None:
        self.where = where
        self._rows: dict[str, list[int]] = {}
        self._count: dict[str, int] = {}
        self._first: dict[str, tuple[str, str]] = {}

    def add(self, what: str, row: int, why: str, do: str = "") -> None:
        self._first.setdefault(what, (why, do))
        rows = self._rows.setdefault(what, [])
        if row in rows[-1:]:
            return
        self._count[what] = self._count.get(what, 0) + 1
        if len(rows) < 4:
            rows.append(row)

    def check(self) -> None:
        """Raise UserError for what was added first."""
        for what, rows in self._rows.items():
            why, do = self._first[what]
            raise UserError(
                f"{format_count(self._count[what])} {what} ({first_rows(rows)})", where=f"{self.where}: teacher column",
                why=why or None, do=do or None,
            )  # fmt: skip


def _to_logits(shares: np.ndarray, several: bool) -> np.ndarray:
    """Probabilities → logits whose softmax (sigmoid, of several labels) they are, float32."""
    clipped = np.clip(shares, LEAST, 1 - LEAST)
    return (np.log(clipped) - (np.log1p(-clipped) if several else 0.0)).astype(np.float32)


def _parsed(cell: Any) -> Any:
    """A cell of a text file may hold JSON."""
    if isinstance(cell, str) and cell.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell


def _number(value: Any) -> int | float | None:
    """A number, also as text; None for anything else."""
    if isinstance(value, str):
        for kind in (int, float):
            with suppress(ValueError):
                return kind(value)
        return None
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _values_of(item: Any) -> list[float]:
    """The numbers in one cell, whatever its form."""
    item = _parsed(item)
    if isinstance(item, Mapping):
        item = list(item.values())
    found = [_number(one["score"] if isinstance(one, Mapping) and "score" in one else one)
             for one in (item if isinstance(item, list) else [item])]  # fmt: skip
    return [float(number) for number in found if number is not None]


def _first(column: Column) -> list[Any]:
    """The first cells that hold something."""
    found: list[Any] = []
    values: Iterator[Any] = values_in(column)
    for value in values:
        if not _is_missing(value):
            found.append(_parsed(value))
        if len(found) == LOOKED_AT:
            break
    return found


def _list_of(cell: Any) -> list[Any]:
    cell = _parsed(cell)
    return cell if isinstance(cell, list) else [cell]


def _is_label(item: Any, *, several: bool) -> bool:
    if several and isinstance(item, list):
        return all(isinstance(one, str) for one in item)
    if isinstance(item, str):
        return not isinstance(_number(item), float)
    return isinstance(item, int | bool)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or (
        isinstance(value, str) and not value.strip()
    )  # fmt: skip
