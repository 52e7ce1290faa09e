"""Errors of a command in the words of its function: a flag in the text is the keyword that the caller writes."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from functools import partial

import click

from compress.errors import UserError

Keywords = Mapping[str, tuple[click.Option, bool]]
"""Keyword → its flag, and whether True means that the flag is given."""

_COMMAND = r"\b(?:compress|python3?|pip|mlflow|torchrun) [^;,)`]*"
"""A command line, which is typed in a terminal: it stays as it is."""
_FLAG = r"(?<![\w./-])--(?P<flag>[a-z][a-z0-9-]*)(?![\w=])"
_VALUE = r"(?: (?P<value>'[^']*'|[\w./~](?:[\w./:=*%~-]*[\w/*%])?))?"
_FOUND = re.compile(f"(?P<command>{_COMMAND})|{_FLAG}{_VALUE}")
_JOINING = ("and", "or", "with", "together", "needs", "is", "of")
"""Words of a sentence that follow a flag where its value is likely, too."""


def name_keywords(error: UserError, keywords: Keywords, given: Collection[str]) -> None:
    """Write `--max-length` as `max_length=` wherever the error names it, with the value that follows. Flags that are no
    keyword stay, and so do whole command lines. given: the keywords of the call."""
    for part in ("what", "where", "why", "do"):
        if (text := getattr(error, part)) is not None:
            replace = partial(_replace, keywords=keywords, given=given, place=part == "where")
            setattr(error, part, _FOUND.sub(replace, text))
    error.args = (error.line(),)


def _replace(match: re.Match[str], keywords: Keywords, given: Collection[str], *, place: bool) -> str:
    """place: the text says where the error is, which a keyword without a value does alone: `data: …`."""
    if match["command"] is not None or (found := _find(match["flag"], keywords, given)) is None:
        return match[0]
    keyword, is_on = found
    option, word = keywords[keyword][0], match["value"]
    rest = "" if word is None else f" {word}"
    if option.is_flag:
        return f"{keyword}={is_on}{rest}"
    used = place or match.string[: match.start()].endswith("use ")
    if word is None or not _is_value(option, word, sure=used):
        return f"{keyword}{'' if place else '='}{rest}"
    if keyword == "set":
        path, equals, value = word.partition("=")
        return f"set={{'{path}': {_literal(value) if equals else '…'}}}"
    return f"{keyword}={_literal(word)}"


def _find(flag: str, keywords: Keywords, given: Collection[str]) -> tuple[str, bool] | None:
    """The keyword of a flag, and the value that stands for a flag that takes none: `--no-recover` is recover=False,
    unless the call says no_recover. None: the function has no such keyword."""
    name = flag.replace("-", "_")
    short = name.removeprefix("no_")
    if short != name and name not in given and short in keywords and keywords[short][0].is_flag:
        return short, False
    return (name, True) if name in keywords else None


def _is_value(option: click.Option, word: str, *, sure: bool) -> bool:
    """Whether the word after a flag is its value, and not the sentence going on. sure: hardly a sentence follows."""
    if word in ("all", "auto") or (isinstance(option.type, click.Choice) and word in option.type.choices):
        return True
    return word not in _JOINING if sure else not (word.isalpha() and word.islower())


def _literal(word: str) -> str:
    """A value as Python writes it. A placeholder, such as FOLDER, stays bare."""
    if word.startswith("'") or (word.isalpha() and word.isupper()):
        return word
    try:
        return repr(json.loads(word))
    except ValueError:
        return repr(word)
