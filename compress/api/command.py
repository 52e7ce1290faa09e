"""A command called from Python: keyword arguments become its flags, its `--json` document becomes the result.

So a command and its function have the same names, checks and messages, and one implementation.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeVar

import click

from compress import registry
from compress.api import data_input, model_input
from compress.api.keywords import name_keywords
from compress.console import collect_documents
from compress.errors import Stopped, UserError, did_you_mean, printable

R = TypeVar("R")

FOLDER = "compress.cli"
OWN = ("json", "debug", "help", "quiet", "dry_run")
"""Flags that only mean something in a terminal; `quiet` is a keyword of every function."""


def call(name: str, values: Mapping[str, Any], *positional: str, quiet: bool = False) -> dict[str, Any]:
    """Run `compress NAME` and return the document that it prints under `--json`.

    name: of the command's file, such as "prune_layers".  values: the long names of flags, underscored → what they are
    given; None: not given.  quiet: without notes and progress on stderr; warnings stay.
    Raises UserError for an unknown keyword or a value that the flag does not take, and what the command raises.
    """
    with collect_documents() as documents:
        _run(name, values, positional, quiet)
        return documents[-1] if documents else {}


def call_for(
    kind: Callable[[str, Mapping[str, Any]], R],
    name: str,
    values: Mapping[str, Any],
    *positional: str,
    quiet: bool = False,
) -> R:
    """What `call` returns, as a result of this kind. An error that is raised after the document was printed has the
    result in its attribute `result`."""
    with collect_documents() as documents:
        try:
            _run(name, values, positional, quiet)
        except UserError as error:
            if documents:
                error.result = kind(name, documents[-1])
            raise
        return kind(name, documents[-1] if documents else {})


@contextmanager
def naming_keywords(name: str) -> Iterator[None]:
    """Errors from inside name the keywords of `compress NAME`, not its flags."""
    try:
        yield
    except UserError as error:
        name_keywords(error, _keywords(registry.module(FOLDER, name).command), ())
        raise


def _run(name: str, values: Mapping[str, Any], positional: Sequence[str], quiet: bool) -> None:
    command: click.Command = registry.module(FOLDER, name).command
    shown = name.replace("_", "-")
    words = [*positional, *_words(command, values, f"compress.{name}")]
    how = ["--json", *(["--quiet"] if quiet else [])]
    with _as_typed(["compress", shown, *words]):
        try:
            with command.make_context(f"compress {shown}", [*words, *how]) as context:
                command.invoke(context)
        except click.ClickException as error:
            raise _complaint(error, name) from None
        except UserError as error:
            name_keywords(error, _keywords(command), values)
            _name_objects(error, {**dict.fromkeys(positional, "model"), **_copies(values)})
            raise error.with_traceback(None) from None  # an expected failure: a notebook would show 20 frames of ours
        except Stopped as stopped:
            reason, folder = stopped.reason, stopped.folder
            if folder is not None:
                reason += f"; continue with the same call and output={folder!r}, resume=True"
            raise Stopped(reason, stopped.resume, folder) from None


def _copies(values: Mapping[str, Any]) -> dict[str, str]:
    """Each path among the values of keywords → its keyword."""
    lists = {keyword: value if isinstance(value, list) else [value] for keyword, value in values.items()}
    return {one: keyword for keyword, value in lists.items() for one in value if isinstance(one, str)}


def _name_objects(error: UserError, keywords: Mapping[str, str]) -> None:
    """Make an error about an object in memory name its keyword instead of the copy in the cache.

    keywords: path → the keyword that it was given as.
    """
    from compress.storage.cache import cache_folder

    parents = [cache_folder() / name for name in (data_input.CACHE, model_input.CACHE)]
    for path, keyword in keywords.items():
        if error.where and Path(path).parent in parents:
            error.where = re.sub(re.escape(path) + r"/(\w+)\.jsonl", rf"{keyword}: \1", error.where)
            error.where = error.where.replace(path, keyword).replace(f"{keyword}: {keyword}", keyword)
    error.args = (error.line(),)


def _words(command: click.Command, values: Mapping[str, Any], where: str) -> Iterator[str]:
    known = _keywords(command)
    for keyword, value in values.items():
        if keyword not in known:
            raise UserError(f"unknown keyword '{printable(keyword, 60)}'", where=where, do=did_you_mean(keyword, known))
        if value is not None:
            yield from _flag(*known[keyword], value, f"{where}: {keyword}")


def _keywords(command: click.Command) -> dict[str, tuple[click.Option, bool]]:
    """keyword → its flag, and whether True means that the flag is given: `recover` is the opposite of --no-recover."""
    found: dict[str, tuple[click.Option, bool]] = {}
    for option in command.params:
        if not isinstance(option, click.Option) or option.hidden:
            continue
        for name in (flag[2:].replace("-", "_") for flag in option.opts if flag.startswith("--")):
            if name not in OWN:
                found[name] = (option, True)
                if option.is_flag and name.startswith("no_"):
                    found.setdefault(name.removeprefix("no_"), (option, False))
    return found


def _flag(option: click.Option, straight: bool, value: Any, where: str) -> Iterator[str]:
    name = next(flag for flag in option.opts if flag.startswith("--"))
    if option.is_flag:
        if not isinstance(value, bool):
            raise UserError(f"{value!r} is not True or False", where=where)
        if value is straight:
            yield name
        elif option.secondary_opts:
            yield option.secondary_opts[0]
    elif name == "--set":
        if not isinstance(value, Mapping):
            raise UserError("not a dictionary", where=where, do="e.g. set={'stages.0.training.steps': 100}")
        yield from (f"--set={path}={json.dumps(one, default=fspath)}" for path, one in value.items())
    elif name == "--sweep" and isinstance(value, Mapping):
        yield from (f"--sweep={path}={_values(row, where)}" for path, row in value.items())
    elif option.multiple and isinstance(value, list | tuple):
        yield from (f"{name}={_text(one)}" for one in value)
    else:
        yield f"{name}={_text(value)}"


def _values(row: Any, where: str) -> str:
    """The values of one key of a sweep."""
    if not isinstance(row, list | tuple):
        raise UserError("not a list of values", where=where, do="e.g. sweep={'seed': [0, 1]}")
    return json.dumps(list(row), default=fspath)[1:-1]


def path_text(path: object, where: str) -> str:
    """A path or a name as text. Raises UserError for an object that is neither."""
    if not isinstance(path, str | PathLike):
        do = "give a string or a pathlib.Path"
        raise UserError(f"a value of type {type(path).__name__} is not a path", where=where, do=do)
    return fspath(path)


def _text(value: Any) -> str:
    """As it is typed: a list of plain values with commas between, anything nested as YAML."""
    if isinstance(value, str | PathLike):
        return fspath(value)
    if isinstance(value, list | tuple) and not any(isinstance(one, list | tuple | Mapping) for one in value):
        return ",".join(map(_text, value))
    return json.dumps(value, default=str)


@contextmanager
def _as_typed(words: Sequence[str]) -> Iterator[None]:
    """The command line as the records of a run repeat it: a notebook's own says nothing."""
    before, sys.argv = sys.argv, list(words)
    try:
        yield
    finally:
        sys.argv = before


def _complaint(error: click.ClickException, name: str) -> UserError:
    """click's complaint about a value, with the keyword in place of the flag."""
    parameter = getattr(error, "param", None)
    where = f"compress.{name}"
    if parameter is not None and isinstance(parameter, click.Option):
        where += ": " + next(flag[2:].replace("-", "_") for flag in parameter.opts if flag.startswith("--"))
    message = " ".join((error.message or error.format_message()).split()).rstrip(".")
    return UserError(message[:1].lower() + message[1:], where=where)
