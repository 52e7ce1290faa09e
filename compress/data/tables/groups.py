"""Which rows belong together when quality is told by slices: by length, by right answer, by a column of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from compress.data.reading.columns import format_names
from compress.data.tables.table import WORD_END, Rows
from compress.data.task import Task
from compress.errors import UserError, printable
from evaluation.quality.slices import Members, by_quarter, by_value

LENGTH, LABEL = "length", "label"
MOST = 100  # groups of a column that are told apart; a text or an id has one for every row
FEW = 10  # different numbers of a column that are groups of their own; more of them become quarters


def columns_of(asked: Sequence[str]) -> list[str]:
    """Of what rows are told apart by, the names that are columns of the data."""
    return [name for name in asked if name not in (LENGTH, LABEL)]


def groups(
    task: Task,
    rows: Rows,
    label_names: Sequence[str],
    asked: Sequence[str] | None = None,
    *,
    flag: str = "--slice",
) -> list[Members]:
    """The groups that quality is told of. asked: `length`, `label` (what the right answer tells apart) or columns that
    the table was opened with; None: length, label, and the column that usually says where a row is from.
    flag: what an error blames.

    Raises UserError for a column with too many values, or one that these rows lack.
    """
    found: list[Members] = []
    for name in (LENGTH, LABEL, *rows.others) if asked is None else dict.fromkeys(asked):
        if name == LENGTH:
            # Of words, without what stands between them: nothing does in Chinese, where each character is a word.
            lengths = [sum(len(t) - t.count(WORD_END) for t in texts) for part in rows.contents() for texts in part]
            found += by_quarter("characters", lengths)
        elif name == LABEL:
            found += task.groups(rows, label_names)
        elif name not in rows.others:
            do = format_names([LENGTH, LABEL, *rows.others])
            raise UserError("column not found", where=f"{flag} {printable(name, 60)}", do=do)
        else:
            made = _by_column(name, rows)
            if made is None and asked is not None:
                raise UserError(
                    f"the column has more than {MOST} different values",
                    where=f"{flag} {printable(name, 60)}",
                    do="use a column with fewer different values",
                )
            found += made or []
    return found


def _by_column(name: str, rows: Rows) -> list[Members] | None:
    """A group for each value; quarters of many numbers; None for what is different in every other row."""
    column = rows.others[name]
    values: list[Any] = column if isinstance(column, list) else column.to_pylist()
    given = [v for v in values if v is not None]
    distinct = {str(v) for v in given}
    if len(distinct) > FEW and all(isinstance(v, int | float) and not isinstance(v, bool) for v in given):
        numbers = np.array([math.nan if v is None else float(v) for v in values])
        whole = all(float(v).is_integer() for v in given if math.isfinite(v))
        return by_quarter(name, numbers, digits=0 if whole else 3)
    if len(distinct) > MOST:
        return None
    shown = ["" if v is None else printable(str(v), 60).strip() for v in values]
    return by_value(name, [value or "(none)" for value in shown])  # an empty cell of a CSV file is text
