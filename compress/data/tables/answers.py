"""Gold answers of questions: SQuAD's columns → characters of the context, every answer checked against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from compress.data.batches.ragged import Ragged, bounds_of
from compress.data.reading.frame import Column, Frame
from compress.data.tables.table import UNLABELLED
from compress.errors import UserError, format_count, printable

STARTS = ("answer_starts", "answer_start")  # columns of offsets, where the answers have none of their own
MISPLACED = UNLABELLED - 1
SHOWN = 40  # characters of an answer that an error shows

Cell = tuple[Any, Any, str | None]
"""A row's answers as they were read, their offsets where they stand in a column of their own, and its context."""


@dataclass(frozen=True)
class Answers:
    """The answers of N questions.

    spans: a list a row of (start, end): the answer is characters start..end-1 of the context (code points, not bytes).
    An empty list says that the answer is not in the context; one of UNLABELLED that it is not known; one of MISPLACED
    that the row is wrong.  bad: place of a wrong row → what is wrong with it.
    """

    spans: Ragged
    bad: Mapping[int, str] = field(default_factory=dict)


def gather_cells(frame: Frame, answers: str, context: str) -> list[Cell]:
    """The columns that make up the answers, row by row."""
    names = [answers, _starts(frame), context]
    columns = [[None] * frame.rows if name is None else _plain(frame.columns[name]) for name in names]
    texts = [value if isinstance(value, str) else None for value in columns[2]]  # others are told with the texts
    return list(zip(columns[0], columns[1], texts, strict=True))


def are_in(frame: Frame, answers: str) -> bool:
    """Whether a column looks like answers: it holds objects or lists of them, or there are offsets beside it."""
    if answers not in frame.columns:
        return False
    column = frame.columns[answers]
    first = next((value for value in (column if isinstance(column, list) else column[:1].to_pylist()) if value), None)
    holds = first[0] if isinstance(first, list) else first
    return isinstance(holds, Mapping) or _starts(frame) is not None


def _starts(frame: Frame) -> str | None:
    """The column of the offsets, where they have one."""
    folded = {str(name).lower(): name for name in frame.columns}
    return next((folded[name] for name in STARTS if name in folded), None)


def _plain(column: Column) -> list[Any]:
    return column if isinstance(column, list) else column.to_pylist()


def read_answers(cells: Sequence[Cell], where: str) -> Answers:
    """Answers as data sets write them.

    That is SQuAD's {"text": [...], "answer_start": [...]}, a list of {"text", "answer_start"}, a list of texts, or one
    text; the last two with their offsets beside. None: the answer is not known.

    A row that is wrong is told in `bad`. Raises UserError when there are no offsets.
    """
    spans: list[tuple[int, int]] = []
    lengths: list[int] = []
    bad: dict[int, str] = {}
    for row, (value, own, context) in enumerate(cells):
        places: list[tuple[int, int]] = [(MISPLACED, MISPLACED)]
        found = _pairs(value, own)
        if isinstance(found, str):
            bad[row] = found
        elif value is None:
            places = [(UNLABELLED, UNLABELLED)]
        elif found and all(start is None for _, start in found):
            raise UserError(
                "the answers have no offsets",
                where=where,
                why=f"row {row + 1} has {_shown(found[0][0])} without one",
                do='write {"text": [...], "answer_start": [...]}, or give the offsets in a column answer_starts',
            )
        else:
            problem = next((p for text, start in found if (p := mismatch(text, start, context or ""))), None)
            if problem is None:
                places = [(start, start + len(text)) for text, start in found]
            else:
                bad[row] = problem
        spans += places
        lengths.append(len(places))
    return Answers(Ragged(np.array(spans, dtype=np.int64).reshape(-1, 2), bounds_of(lengths)), bad)


def extract_answer_texts(spans: Ragged, contexts: Sequence[str]) -> list[list[str]]:
    """The texts of every row's answers, as they stand in the context."""
    return [[context[s:e] for s, e in spans.row(i).tolist()] for i, context in enumerate(contexts)]


def mismatch(text: Any, start: Any, context: str) -> str | None:
    """Why this answer does not stand at this place of the context; None when it does."""
    if not isinstance(text, str):
        return f"the answer is {type(text).__name__}, not text"
    if not text.strip():
        return "the answer is empty (for a question without an answer, write an empty list)"
    if isinstance(start, bool) or not isinstance(start, int):
        return f"the offset of {_shown(text)} is {_named(start)}, not a whole number"
    if start >= 0 and context[start : start + len(text)] == text:
        return None
    if not 0 <= start < len(context):
        found = f"the context has {len(context):,} characters"
    else:
        found = f"the context has {_shown(context[start : start + len(text)])} there"
    return f"{_shown(text)} is not at character {start}: {found}{_elsewhere(text, start, context)}"


def _elsewhere(text: str, start: int, context: str) -> str:
    """Where the answer does stand, nearest first, and what that says about how offsets were counted."""
    place = context.find(text)
    if place < 0:
        return ", and the answer does not occur in it"
    nearest = place
    while place >= 0:
        if abs(place - start) < abs(nearest - start):
            nearest = place
        place = context.find(text, place + 1)
    if len(context[:nearest].encode()) == start:
        return f"; it starts at {nearest}, and {start} is its offset in UTF-8 bytes: count characters"
    return f"; it starts at {nearest}"


def _pairs(value: Any, own: Any) -> list[tuple[Any, Any]] | str:
    """(text, start) of every answer of one row, or what is wrong with its shape."""
    if isinstance(value, Mapping):
        texts, starts = value.get("text"), value.get("answer_start", own)
        if "text" not in value:
            return f"the answers have no key 'text', found: {', '.join(map(str, value))}"
    elif isinstance(value, list) and value and all(isinstance(item, Mapping) for item in value):
        texts, starts = [i.get("text") for i in value], [i.get("answer_start") for i in value]
    else:
        texts, starts = value, own
    texts = texts if isinstance(texts, list) else [] if texts is None else [texts]
    if starts is None:
        return [(text, None) for text in texts]
    starts = starts if isinstance(starts, list) else [starts]
    if len(texts) != len(starts):
        return f"{format_count(len(texts), 'answer')} and {format_count(len(starts), 'offset')}"
    return list(zip(texts, starts))


def _shown(text: Any) -> str:
    return f"'{printable(str(text), SHOWN)}'"


def _named(value: Any) -> str:
    return "missing" if value is None else f"{_shown(value)}"
