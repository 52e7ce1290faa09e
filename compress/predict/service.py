"""A model folder as a service answers with it: rows in, answers out. What the pyfunc flavour of MLflow calls."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from compress.data.reading.columns import PAIRS, TEXT
from compress.data.task import Task
from compress.data.text.texts import is_empty
from compress.errors import UserError, did_you_mean
from compress.modelfolder.cascade import inspect
from compress.predict.cascade import open_predictor
from compress.predict.file_batches import WINDOW


class Service:
    """Answers rows of text with a folder, in the runtime that it is meant to be run in.

    Raises UserError as `Predictor` does.
    """

    def __init__(self, folder: Path) -> None:
        self._predictor = open_predictor(folder)
        self._roles, self._needs_pair = roles_of(self._predictor.task), self._predictor.task.needs_pair

    def answer(self, rows: Any) -> list[dict[str, Any]]:
        """What `compress predict --json` gives for each row, without the text.

        rows: a table (whatever has `to_dict("records")`), texts, or mappings with the columns of `columns_of`. Raises
        UserError naming the row for a text that is missing, or is none.
        """
        table = rows.to_dict("records") if hasattr(rows, "to_dict") else rows
        asked = [self._texts(number, row) for number, row in enumerate(table)]
        found = []
        for start in range(0, len(asked), WINDOW):
            part = asked[start : start + WINDOW]
            second = collect_pairs([pair for _, pair in part])
            found += [a.as_json() for a in self._predictor.predict([text for text, _ in part], second)]
        return found

    def _texts(self, number: int, row: Any) -> tuple[str, str | None]:
        first, second = self._roles
        if isinstance(row, str):
            row = {first[0]: row}
        if not isinstance(row, Mapping):
            raise UserError("expected a text, or a row with named texts", where=f"row {number}")
        text = _named(number, row, first, needed=True)
        return str(text), _named(number, row, second, needed=self._needs_pair) if second else None


def collect_pairs(pairs: Sequence[str | None]) -> list[str] | None:
    """The second texts of rows, None where no row has one. Raises UserError where only some have one."""
    second = [pair for pair in pairs if pair is not None]
    if second and len(second) != len(pairs):
        raise UserError(
            "some rows have a second text and some have none", do="give a second text for all rows or for none"
        )
    return second or None


def columns_of(folder: Path) -> list[tuple[str, bool]]:
    """(name, needed) of the text columns that a service of this folder reads."""
    info = inspect(folder)
    task = open_predictor(folder, runtime="torch").task
    first, second = roles_of(task)
    if info.meta.task == "classification":  # which reads single texts; pairs are another task
        second = ()
    return [(first[0], True), *([(second[0], task.needs_pair)] if second else [])]


DOCUMENT_NAMES = ("document", "passage", "text_pair")
"""Of the second text where the first one is a query."""


def roles_of(task: Task) -> tuple[Sequence[str], Sequence[str]]:
    """The names of the first text and of the second, the usual first; no second for tasks that read tags of words, or
    embed texts one by one. They are those by which the columns of training data are inferred."""
    roles = list(task.text_roles)
    if task.label_free or roles[0] == "words":
        return TEXT, ()
    if task.pairs_answer:
        return list(dict.fromkeys(["query", *(name for name in TEXT if name not in DOCUMENT_NAMES)])), DOCUMENT_NAMES
    if "text_pair" in roles and "text_pair" not in task.optional_roles:
        firsts, seconds = zip(("text", "text_pair"), *PAIRS, strict=True)
        return list(dict.fromkeys(firsts)), list(dict.fromkeys(seconds))
    if roles[0] == "text":
        return TEXT, ("text_pair", "sentence2", "text2")
    first, second = ([role, *task.usual.get(role, ())] for role in roles[:2])
    return list(dict.fromkeys(first)), list(dict.fromkeys(second))


def _named(number: int, row: Mapping[str, Any], names: Iterable[str], *, needed: bool) -> str | None:
    name = next((n for n in names if isinstance(row.get(n), str) and not _is_empty(row[n])), None)
    if name is None:
        if not needed:
            return None
        first = next(iter(names))
        there = next((n for n in names if not _is_empty(row.get(n))), None)
        if there is not None:
            told = f"'{there}' is a {type(row[there]).__name__}, not a text"
            raise UserError(told, where=f"row {number}", do="give one text for each row")
        empty = next((n for n in names if n in row), None)
        if empty is not None:
            raise UserError(f"text '{empty}' is empty", where=f"row {number}")
        raise UserError(f"text '{first}' is missing", where=f"row {number}", do=did_you_mean(first, map(str, row)))
    return str(row[name])


def _is_empty(cell: Any) -> bool:
    return cell is None or (is_empty(cell) if isinstance(cell, str) else isinstance(cell, float) and math.isnan(cell))
