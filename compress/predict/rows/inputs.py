"""What a model is asked: texts and pairs of texts, the columns that hold them, and rows that cannot be read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from compress.data.reading.columns import TEXT, TEXT_FLAGS, fold_name
from compress.data.reading.remote import Place
from compress.data.task import Task
from compress.data.text.texts import is_empty
from compress.data.text.words import JoinedWords
from compress.errors import UserError, did_you_mean, nearest, printable, suggest
from compress.predict.service import DOCUMENT_NAMES, roles_of
from compress.storage.sent import find_name


@dataclass(frozen=True)
class PredictionInput:
    """One thing to answer. beside: what its answer repeats, so that it can be found again."""

    text: str
    pair: str | None = None
    beside: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be read. number: of the line on which it begins, or of the row in a file without lines, from 1
    on."""

    file: str
    unit: Literal["line", "row"]
    number: int
    error: UserError

    def as_json(self) -> dict[str, Any]:
        """As a file of rejected rows holds it."""
        reason = UserError(self.error.what, why=self.error.why).line()
        return {"file": self.file, self.unit: self.number, "reason": reason}


Row = PredictionInput | BadRow
Reject = Callable[[BadRow], None]
"""What is done with a bad row."""


def stop_at(bad: BadRow) -> None:
    """Raise the error of a bad row."""
    raise bad.error


@dataclass(frozen=True)
class TextColumns:
    """Usual names of the columns of the first text, and of the second: none where rows have one text.

    needs_second: whether each row must have both.  named: whether the lines of any file are objects, since texts have
    names of their own such as question and context, or the user named a column by this flag.  lists: whether a text may
    be the list of its words.  ranks: whether documents alone can be ranked for one query.  kept: other columns, and
    under which name the answer repeats each.
    """

    first: Sequence[str]
    second: Sequence[str] = ()
    needs_second: bool = False
    named: bool = False
    flag: str | None = None
    lists: bool = False
    ranks: bool = False
    kept: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of_task(cls, task: Task) -> TextColumns:
        """What the rows of a task hold."""
        first, second = roles_of(task)
        named = len([role for role in task.text_roles if role in task.usual]) == 2
        lists = task.text_roles == ("words",)
        if lists:
            first = list(dict.fromkeys([*first, *task.usual["words"]]))
        return cls(first, second, task.needs_pair, named, lists=lists, ranks=task.ranks)

    def renamed(self, text: str | None, text_pair: str | None) -> TextColumns:
        """The same where the user named a column: lines of any file are objects then. Raises UserError for a second
        one where rows have one text."""
        if text_pair is not None and not self.second:
            raise UserError("the model reads one text", where=f"{TEXT_FLAGS[1]} {text_pair}", do="remove it")
        first = self.first if text is None else (text,)
        flag = next((flag for flag, name in zip(TEXT_FLAGS, (text, text_pair), strict=True) if name is not None), None)
        named = self.named or flag is not None
        if text_pair is None:
            return replace(self, first=first, named=named, flag=flag)
        return replace(self, first=first, second=(text_pair,), needs_second=True, named=named, flag=flag)

    def keep(self, kept: Mapping[str, str]) -> TextColumns:
        """The same, whose rows also have these columns."""
        return replace(self, kept=kept, named=self.named or bool(kept), flag=self.flag or (KEEP if kept else None))

    @property
    def needed(self) -> str:
        """The columns that a row must have, for people."""
        return " and ".join([self.first[0], *([self.second[0]] if self.needs_second else [])])

    def build(self, row: Mapping[str, Any], where: str) -> PredictionInput:
        """The texts of a row; an `id` is kept, and columns that are named for it. Raises UserError for a column that is
        missing, and for a text that is none."""
        if self.ranks and self.flag in (None, KEEP):
            self._require_query(row, where)
        text = _find_text(row, self.first, TEXT_FLAGS[0], where, needed=True, lists=self.lists)
        assert text is not None
        pair = None
        if self.second:
            pair = _find_text(row, self.second, TEXT_FLAGS[1], where, needed=self.needs_second)
        beside = {"id": _copy_value(row["id"], "id", where)} if "id" in row else {}
        for column, name in self.kept.items():
            key = _find_key(tuple(row), (column,))
            if key is None:
                raise UserError(f"the row has no {column}", where=where, do=did_you_mean(column, row))
            beside[name] = _copy_value(row[key], column, where)
        return PredictionInput(text, pair, beside)

    def _require_query(self, row: Mapping[str, Any], where: str) -> None:
        """Raise UserError for a document alone."""
        columns = tuple(row)
        both = all(_find_key(columns, tuple(names)) for names in (self.first, self.second))
        if not both and not _find_key(columns, QUERIES) and _find_key(columns, tuple(DOCUMENTS.first)):
            do = "give each row a query, or one for all rows: --query TEXT"
            raise UserError("the row has a document and no query", where=where, do=do)


KEEP = "--keep-column"
QUERIES = ("query", "question")
"""Columns that stand beside those of documents."""
EMBEDDED = TextColumns(TEXT)
"""What vectors are made of."""
DOCUMENTS = TextColumns([*DOCUMENT_NAMES, *(name for name in TEXT if name not in QUERIES)])
"""What is ranked."""


def join_answer(beside: Mapping[str, Any], answer: Mapping[str, Any]) -> dict[str, Any]:
    """What is written for a row: what its answer repeats, then the answer. Raises UserError for a name that both
    have."""
    if (name := next((name for name in beside if name in answer and name != "id"), None)) is not None:
        do = f"keep it under another name: {KEEP} COLUMN=NAME"
        raise UserError(f"the predictions have a '{name}' of their own", where=KEEP, do=do)
    return {**beside, **answer}


def require_texts(name: str, texts: Sequence[str]) -> None:
    """Raise UserError for an empty text. name: what each is called."""
    for number, text in enumerate(texts, start=1):
        if is_empty(text):
            raise UserError("it is empty", where=f"{name} {number}" if len(texts) > 1 else name)


def build_row(
    file: Place, unit: Literal["line", "row"], number: int, row: dict[str, Any] | UserError, columns: TextColumns
) -> Row:
    """What a row of a table asks, or what is wrong with it."""
    where = f"{file}:{number}" if unit == "line" else f"{file}: row {number}"
    try:
        if isinstance(row, UserError):
            raise row
        return columns.build(row, where)
    except UserError as error:
        return BadRow(find_name(str(file)), unit, number, error)


def _find_text(
    row: Mapping[str, Any], names: Sequence[str], flag: str, where: str, *, needed: bool, lists: bool = False
) -> str | None:
    """The text under the first of these names, in whatever case; None where it may be missing and is. lists: whether it
    may be a list of words."""
    key = _find_key(tuple(row), tuple(names))
    if key is None:
        if not needed:
            return None
        _refuse_list(row, nearest(names[0], row), where)
        do = suggest(names[0], row) or f"name its column with {flag}; {did_you_mean(names[0], row)}"
        raise UserError(f"the row has no {names[0]}", where=where, do=do)
    text = row[key]
    if lists and isinstance(text, list) and all(isinstance(word, str) for word in text):
        text = JoinedWords.of(text)
    elif not lists:
        _refuse_list(row, key, where)
    if not isinstance(text, str) or is_empty(text):
        raise UserError(f"the {names[0]} is empty or not text", where=where)
    _require_whole(text, names[0], where)
    return text


def _refuse_list(row: Mapping[str, Any], key: str | None, where: str) -> None:
    """Raise UserError for a column that holds several texts."""
    if key is not None and isinstance(row[key], list):
        do = "write a row for each entry"
        raise UserError(f"'{printable(key, 40)}' is a list, not a text", where=where, do=do)


@functools.lru_cache(maxsize=64)
def _find_key(columns: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    """The column that has the first of these names, in whatever case if none has one. The rows of a file have the same
    columns, as a rule."""
    folded = {fold_name(column): column for column in columns}
    return next((name for name in names if name in columns), next((folded[n] for n in names if n in folded), None))


def _copy_value(value: Any, name: str, where: str) -> Any:
    """As an answer repeats it: JSON, so that a date of a parquet file is text."""
    if isinstance(value, str):
        _require_whole(value, name, where)
    return value if value is None or isinstance(value, str | int | float | list | dict) else str(value)


def _require_whole(text: str, name: str, where: str) -> None:
    """Raise UserError for half a character, which JSON can hold and no file of UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(f"the {name} contains half a surrogate pair", where=where) from error
