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
        help="Take the student's layers from this checkpoint, not from the teacher.",
    ),
    click.option(
        "--layers", metavar="LIST", help="Layers to keep: 0,2,4, or a rule with their number, such as uniform:3."
    ),
    click.option("--hidden-size", type=click.IntRange(1), help="Hidden size of the student."),
    click.option("--num-heads", metavar="N", help="Attention heads of each layer: a number, or a list, one per layer."),
    click.option(
        "--intermediate-size",
        metavar="N",
        help="Feed-forward neurons of each layer: a number, or a list, one per layer.",
    ),
    click.option(
        "--init",
        type=click.Choice(["teacher", "selection", "svd", "projection", "random"]),
        help="Initialization of the student's weights.",
    ),
)
KEYS = {"num_heads": "heads", "intermediate_size": "intermediate_size", "hidden_size": "hidden", "init": "init"}
"""Flag → key of `student:`."""
NAMES = ("student_model", "layers", *KEYS)


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


def student_overrides(values: Mapping[str, Any]) -> Iterator[Override]:
    """What the flags change in every stage that cuts a student. Raises UserError for a list that is none."""
    from compress.contracts import Override

    def put(key: str, value: Any, flag: str) -> Override:
        return Override(f"stages.*.student.{key}", value, flag)

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
    for name, key in KEYS.items():
        if (value := values[name]) is None:
            continue
        flag = f"--{name.replace('_', '-')} {value}"
        if name in ("num_heads", "intermediate_size"):
            found = _numbers(value, flag)
            value = found[0] if len(found) == 1 else found
        yield put(key, value, flag)


def _numbers(text: str, flag: str) -> list[int]:
    parts = [part.strip() for part in text.strip("[]").split(",")]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise UserError("not a list of whole numbers", where=flag, do="separate them with commas, e.g. 0,2,4")
    return [int(part) for part in parts]
