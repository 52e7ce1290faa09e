"""Checks of single values: each raises UserError that names the key, what was found and what is allowed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from compress.errors import UserError, did_you_mean, suggest

MAX_POSITIONS = 1_048_576
"""Far above any encoder, far below what would fill a memory: fixed positions are computed when a model is opened."""


def integer(name: str, value: object, *, least: int, most: int | None = None, where: str = "encoder") -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise UserError(f"{name} must be an integer, not {value!r}", where=f"{where}.{name}")
    if value < least or (most is not None and value > most):
        allowed = f"at least {least}" if most is None else f"{least}..{most}"
        raise UserError(f"{name} is {value}", where=f"{where}.{name}", why=f"it must be {allowed}")


def positive(name: str, value: object, *, most: int | None = None, where: str = "encoder") -> None:
    integer(name, value, least=1, most=most, where=where)


def probability(name: str, value: object, where: str = "encoder") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1:
        raise UserError(f"{name} is {value!r}", where=f"{where}.{name}", why="it must be at least 0 and below 1")


def flag(name: str, value: object, where: str = "encoder") -> None:
    if not isinstance(value, bool):
        raise UserError(f"{name} must be true or false, not {value!r}", where=f"{where}.{name}")


def epsilon(name: str, value: object, where: str = "encoder") -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
        raise UserError(f"{name} is {value!r}", where=f"{where}.{name}", why="it must be above 0 and below 1")


def choice(name: str, value: object, allowed: Sequence[str], where: str = "encoder") -> None:
    if value not in allowed:
        raise UserError(
            f"unknown {name} {value!r}",
            where=f"{where}.{name}",
            why="known: " + ", ".join(allowed),
            do=suggest(str(value), allowed),
        )


def check_keys(cls: type, values: Mapping[str, Any], where: str) -> None:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    for key in values:
        if key not in fields:
            raise UserError(f"unknown key '{key}'", where=f"{where}.{key}", do=did_you_mean(str(key), fields))
    for name, f in fields.items():
        if name not in values and f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING:
            raise UserError(f"missing key '{name}'", where=where)


def is_list(value: object) -> bool:
    return isinstance(value, Sequence) and not isinstance(value, str | bytes)
