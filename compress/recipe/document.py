"""YAML text → a tree of values that remember where they stand.

Only the parser of PyYAML is used, never its constructors: a recipe is mappings, lists and scalars, so aliases (which
can expand without bound), tags (which can build objects) and second documents are refused where they appear. Scalars
follow YAML 1.2 and JSON rather than YAML 1.1: `1e-5` is a number, `no`, `010` and `12:30` are text, which a field that
wants something else then refuses by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import yaml

from compress.errors import ExitCode, UserError, describe, printable
from compress.storage.foreign import refuse_special_file

MAX_BYTES = 1_000_000
MAX_DEPTH = 20
MAX_NODES = 10_000

INTEGER = re.compile(r"[-+]?(0|[1-9][0-9]*)")
FLOAT = re.compile(r"[-+]?(0|[1-9][0-9]*)?(\.[0-9]+|(?<=[0-9])\.?)([eE][-+]?[0-9]+)?")
NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
WORDS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip


def is_text(plain: str) -> bool:
    """Whether an unquoted scalar is text rather than a number, a truth value or nothing."""
    return plain not in WORDS and not any(p.fullmatch(plain) for p in (INTEGER, FLOAT, NOT_FINITE))


@dataclass(frozen=True)
class Place:
    """Where a value was written: a position in a file, or the flag that gave it."""

    source: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.source}:{self.line}:{self.column}" if self.line else self.source


@dataclass
class Value:
    """A scalar, a list of Values or a mapping of Values. key_place: where its key stands, when it is in a mapping."""

    content: Any
    place: Place
    key_place: Place | None = None

    def plain(self) -> Any:
        """The same as ordinary Python data."""
        if isinstance(self.content, dict):
            return {key: value.plain() for key, value in self.content.items()}
        if isinstance(self.content, list):
            return [value.plain() for value in self.content]
        return self.content


def tree(data: Any, place: Place) -> Value:
    """Python data as Values that all stand at `place`. Raises UserError for a string that no file could hold."""
    if isinstance(data, Mapping):
        return Value({_whole(str(key), place): tree(value, place) for key, value in data.items()}, place, place)
    if isinstance(data, list | tuple):
        return Value([tree(item, place) for item in data], place, place)
    return Value(_whole(data, place) if isinstance(data, str) else data, place, place)


def _whole(text: str, place: Place) -> str:
    if "\0" in text or any("\ud800" <= c <= "\udfff" for c in text):
        raise UserError("a string contains NUL or a lone surrogate", where=str(place))
    return text


def read(path: Path, shown: str) -> Value:
    """The mapping that a recipe file holds. `shown` is the file's name in messages."""
    document = parse(_text(path, shown), shown)
    if document is None:
        raise UserError("the file is empty", where=f"{shown}:1:1", do="a recipe is a mapping of keys to values")
    if not isinstance(document.content, dict):
        raise UserError(
            "a recipe must be a mapping of keys to values",
            where=str(document.place),
            why=f"found {describe(document.content)}",
        )
    return document


def parse(text: str, source: str, *, lines: bool = True) -> Value | None:
    """The one document in `text`, None when there is none. lines=False: positions inside `source` mean nothing."""
    return _Builder(text, source, lines).document()


# --- bytes → text -----------------------------------------------------------------------------------------------


def _text(path: Path, shown: str) -> str:
    refuse_special_file(path, shown)
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except IsADirectoryError:
        raise UserError("is a directory", where=shown, do="give a recipe file") from None
    except FileNotFoundError:
        raise UserError("no such file", where=shown, why=f"searched from {Path.cwd()}") from None
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError("cannot read the recipe", where=shown, why=reason, code=ExitCode.INPUT) from None
    if len(raw) > MAX_BYTES:
        raise UserError("the recipe is too large", where=shown, why=f"over {MAX_BYTES:,} bytes")
    if raw[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UserError("the recipe is UTF-16", where=f"{shown}:1:1", do="save it as UTF-8")
    raw = raw.removeprefix(b"\xef\xbb\xbf")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        where = _position(raw[: error.start].decode("utf-8"), shown)
        why = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise UserError("not UTF-8", where=str(where), why=why, do="save the recipe as UTF-8") from None
    if "\0" in text:
        where = _position(text[: text.index("\0")], shown)
        raise UserError("NUL byte", where=str(where), do="a recipe is a text file; check the path")
    return text


def _position(before: str, source: str) -> Place:
    """The place right after `before`."""
    return Place(source, before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1)


# --- events → tree ----------------------------------------------------------------------------------------------


class _Loader(yaml.SafeLoader):
    """Only its scanner and parser run: `_Builder` reads their events."""


class _Builder:
    """Reads the parser's events into Values, within the limits."""

    def __init__(self, text: str, source: str, lines: bool) -> None:
        self.source, self.lines, self.nodes = source, lines, 0
        self.events = self._events(text)

    def document(self) -> Value | None:
        result: Value | None = None
        documents = 0
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._refuse("a second document", event, "a recipe is one YAML document; remove the `---`")
            elif isinstance(event, yaml.NodeEvent):
                result = self._value(event, 1)
        return result

    def _events(self, text: str) -> Iterator[yaml.Event]:
        try:
            yield from yaml.parse(text, Loader=_Loader)
        except yaml.reader.ReaderError as error:
            where = _position(text[: error.position], self.source) if self.lines else Place(self.source)
            code = error.character if isinstance(error.character, int) else ord(error.character)
            raise UserError(f"character U+{code:04X} is not allowed in YAML", where=str(where)) from None
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from None

    def _value(self, event: yaml.Event, depth: int) -> Value:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self._refuse("the recipe is too large", event, why=f"more than {MAX_NODES:,} values")
        if depth > MAX_DEPTH:
            self._refuse("nested too deep", event, why=f"more than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            self._refuse("aliases are not allowed", event, "write the value again, or use `extends:`")
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.anchor is not None:
            self._refuse("anchors are not allowed", event, "write the value again, or use `extends:`")
        if event.tag is not None:
            self._refuse("tags are not allowed", event, "write plain values", why=f"found {event.tag}")
        if isinstance(event, yaml.ScalarEvent):
            return Value(self._scalar(event), self._place(event))
        if isinstance(event, yaml.SequenceStartEvent):
            return Value(self._list(depth), self._place(event))
        return Value(self._mapping(depth), self._place(event))

    def _list(self, depth: int) -> list[Value]:
        items: list[Value] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self._value(event, depth + 1))
        return items

    def _mapping(self, depth: int) -> dict[str, Value]:
        items: dict[str, Value] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent) or event.tag is not None:
                self._refuse("a key must be plain text", event)
            key, place = self._text(event), self._place(event)
            if key in items:
                first = items[key].key_place
                assert first is not None
                twice = f"lines {first.line} and {place.line}" if self.lines else "twice in one mapping"
                self._refuse(f"duplicate key '{printable(key, 60)}'", event, "keep one", why=twice)
            value = self._value(next(self.events), depth + 1)
            value.key_place = place
            items[key] = value
        return items

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text = self._text(event)
        if event.style is not None or is_text(text):
            return text
        if text in WORDS:
            return WORDS[text]
        if INTEGER.fullmatch(text):
            if len(text) > 30:
                self._refuse("the number is too long", event, why=f"{len(text)} digits")
            return int(text)
        if NOT_FINITE.fullmatch(text) or math.isinf(float(text)):
            self._refuse("not a finite number", event, why=f"found {text}")
        return float(text)

    def _text(self, event: yaml.ScalarEvent) -> str:
        return _whole(event.value, self._place(event))

    def _place(self, event: yaml.Event) -> Place:
        mark = event.start_mark
        return Place(self.source, mark.line + 1, mark.column + 1) if self.lines else Place(self.source)

    def _refuse(self, what: str, event: yaml.Event, do: str | None = None, why: str | None = None) -> NoReturn:
        raise UserError(what, where=str(self._place(event)), why=why, do=do)

    def _syntax(self, error: yaml.MarkedYAMLError) -> UserError:
        mark = error.problem_mark or error.context_mark
        where = Place(self.source, mark.line + 1, mark.column + 1) if mark and self.lines else Place(self.source)
        problem = error.problem or str(error.context)
        if "'\\t'" in problem:
            return UserError("a tab in the indentation", where=str(where), do="indent with spaces")
        do = None
        if "mapping values are not allowed" in problem:
            do = "quote text that contains ': ', and check the indentation"
        return UserError("not valid YAML", where=str(where), why=problem, do=do)
