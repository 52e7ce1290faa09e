"""Score columns → numbers, and what can be wrong with them, with counts and rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from compress.data.reading.frame import Column
from compress.data.tables.label_order import Labels
from compress.data.tables.table import first_rows
from compress.errors import UserError, format_count, printable

NAME = "score"


def read_scores(
    columns: Mapping[str, Column],
    where: str,
    *,
    names: Sequence[str] | None = None,
    expected: Sequence[str] | None = None,
) -> Labels:
    """Score columns of all labelled splits → (N,) float32; NaN where there is none. Digits in text are numbers too.

    names, expected: the one name of the score, from the data and from a model. Raises UserError for values that are no
    numbers, for infinities, and when all train scores are the same.
    """
    if names is not None and len(names) != 1:
        raise UserError("regression has no label names", where=where, why=f"found {len(names)}", do="remove them")
    one = expected if expected is not None and len(expected) == 1 else names
    out = Labels({}, list(one or [NAME]))
    for split, column in columns.items():
        scores = _read(column, f"{where}: {split}")
        known = scores[~np.isnan(scores)]
        if split != "train" and len(scores) and (not len(known) or (known == -1).all()):
            out.hidden.append(split)  # withheld, as benchmarks do with their test sets
            continue
        if split == "train" and len(known) and known.min() == known.max():
            raise UserError(f"every train row has the same score {known[0]:g}", where=where, do="scores must differ")
        out.numbers[split] = scores
    return out


def _read(column: Column, where: str) -> np.ndarray:
    """(N,) float32. None, NaN and empty text count as no score."""
    values: list[Any] = column if isinstance(column, list) else column.to_pylist()
    scores = np.full(len(values), np.nan, dtype=np.float64)
    wrong: list[int] = []
    for i, value in enumerate(values):
        if value is None or (isinstance(value, str) and not value.strip()):
            continue
        try:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError("not a number")
            scores[i] = float(value)
        except (ValueError, OverflowError):
            wrong.append(i)
    if wrong:
        raise UserError(
            f"{format_count(len(wrong))} with a score that is not a number ({first_rows([i + 1 for i in wrong])})",
            where=where,
            why=f"the first is {printable(repr(values[wrong[0]]), 60)}",
            do="write scores as numbers, or name another label column",
        )
    beyond = np.flatnonzero(np.abs(scores) > np.finfo(np.float32).max)
    if len(beyond):
        raise UserError(
            f"{format_count(len(beyond))} with a score too large for fp32 ({first_rows(beyond + 1)})",
            where=where,
            why=f"the first is {scores[beyond[0]]:g}",
        )
    return scores.astype(np.float32)
