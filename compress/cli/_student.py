"""Flags that say what a student is made of: values of the `student:` block of a recipe."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click

from compress.cli.options import ModelName
from compress.errors import UserError

if TYPE_CHECKING:
    from compress.contracts import Override, RunOptions

Function = TypeVar("Function", bound=Callable[..., Any])

_FLAGS = (
    click.option(
        "--student",
        "student_model",
        type=ModelName(),
        help="Cut the student from this checkpoint, not from the teacher.",
    ),
    click.option(
        "--layers", metavar="LIST", help="Layers to keep: 0,2,4, or a rule with their number, such as uniform:3."
    ),
    click.option("--hidden", type=click.IntRange(1), help="Width of the student."),
    click.option("--heads", metavar="N", help="Attention heads of a layer, or a list with one number a layer."),
    click.option("--feed-forward", metavar="N", help="Width inside the feed-forward part, or a list, one a layer."),
    click.option(
        "--start",
        type=click.Choice(["teacher", "selection", "svd", "projection", "random"]),
        help="Where the student's weights come from.",
    ),
)
NAMES = ("student_model", "layers", "hidden", "heads", "feed_forward", "start")


def student_flags(function: Function) -> Function:
    """Give a command that takes `options` the flags; what they say is among the overrides of the options."""

    @functools.wraps(function)
    def run(*args: Any, options: RunOptions, **values: Any) -> Any:
        own = {name: values.pop(name) for name in NAMES}
        found = tuple(student_overrides(own))
        # --set is more exact and has the last word.
        return function(*args, options=dataclasses.replace(options, overrides=(*found, *options.overrides)), **values)

    for flag in reversed(_FLAGS):
        run = flag(run)
    return run  # type: ignore[return-value]


KEYS = {"start": "init", "feed_forward": "intermediate_size"}
"""Names here → keys of a recipe, where they differ."""


def student_overrides(values: Mapping[str, Any]) -> Iterator[Override]:
    """What the flags change in every stage that cuts a student. Raises UserError for a list that is none."""
    from compress.contracts import Override

    def put(key: str, value: Any, flag: str) -> Override:
        return Override(f"stages.*.student.{KEYS.get(key, key)}", value, flag)

    if (model := values["student_model"]) is not None:
        flag = f"--student {model}"
        yield put("model", model, flag)
        yield put("layers", None, flag)  # those of the recipe are the teacher's
        yield put("count", None, flag)
    if (layers := values["layers"]) is not None:
        flag = f"--layers {layers}"
        rule, colon, count = layers.partition(":")
        if colon and not count.strip().isdecimal():
            raise UserError("not a rule with a number of layers", where=flag, do="write it as uniform:3")
        yield put("layers", rule if colon or not rule[:1].isdigit() else _numbers(rule, flag), flag)
        yield put("count", int(count) if colon else None, flag)
    for name in ("heads", "feed_forward"):
        if (value := values[name]) is not None:
            flag = f"--{name.replace('_', '-')} {value}"
            found = _numbers(value, flag)
            yield put(name, found[0] if len(found) == 1 else found, flag)
    for name in ("hidden", "start"):
        if values[name] is not None:
            yield put(name, values[name], f"--{name} {values[name]}")


def _numbers(text: str, flag: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise UserError("not a list of whole numbers", where=flag, do="write them with commas between, as 0,2,4")
    return [int(part) for part in parts]
