"""What a person asks of the rows by name: columns, order, conditions such as `size/disk_mb<20`."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Sequence
from typing import Any

from compress.compare.rows import CONDITIONS, Row
from compress.errors import UserError, did_you_mean, printable

NAME, QUALITY, PARETO = "name", "quality", "pareto"
SPECIAL = (NAME, QUALITY, PARETO)
Value = float | str | None

_TESTS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "!=": operator.ne,
    "==": operator.eq,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
_FILTER = re.compile(r"^\s*(?P<key>.+?)\s*(?P<test><=|>=|!=|==|=|<|>)\s*(?P<value>.*?)\s*$")
_LESS_IS_BETTER = re.compile(
    r"^(size/|memory/|speed/(latency|gflops))|calibration_error|(^|/)kl(_|$)|p_value|mean_squared_difference"
)


def value_of(row: Row, key: str) -> Value:
    """A figure, a parameter or another fact of the row; None where it has none."""
    if key == NAME:
        return row.name
    if key == QUALITY:
        return None if row.quality is None else row.quality[0]
    if key in row.values:
        return row.values[key]
    if key in CONDITIONS and row.conditions is not None:
        return row.condition(key)
    return row.facts.get(key) or row.context.get(key)


def check_key(key: str, rows: Sequence[Row], flag: str) -> str:
    """`key` if some row has it. Raises UserError with the nearest."""
    if key in SPECIAL or any(value_of(row, key) is not None for row in rows):
        return key
    known = set(SPECIAL)
    for row in rows:
        known |= row.values.keys() | row.facts.keys() | row.context.keys()
    hint = did_you_mean(key, known)
    ends = [name for name in known if name.rpartition("/")[2].startswith(key)] if hint.startswith("known") else []
    do = f"did you mean '{min(ends)}'?" if ends else printable(hint, 300)
    raise UserError(f"no row has a '{printable(key, 60)}'", where=flag, do=do)


def filter_rows(rows: Sequence[Row], filters: Sequence[str]) -> list[Row]:
    """The rows that meet all of the filters; one without the value asked for meets none.

    Raises UserError for what is no filter, and when no row is left.
    """
    left = list(rows)
    for text in filters:
        flag = f"--filter {printable(text, 80)!r}"
        match = _FILTER.match(text)
        if match is None:
            raise UserError("not a valid filter", where=flag, do="write KEY<NUMBER, KEY>=NUMBER, KEY=TEXT or KEY!=TEXT")
        key, test, asked = check_key(match["key"], rows, flag), match["test"], match["value"]
        left = [row for row in left if _meets(value_of(row, key), test, asked, flag)]
    if filters and not left:
        raise UserError(f"none of the {len(rows)} rows matches", where="--filter", do="remove a filter")
    return left


def _meets(value: Value, test: str, asked: str, flag: str) -> bool:
    if value is None:
        return False
    number, wanted = _number(value), _number(asked)
    if number is not None and wanted is not None:
        return _TESTS[test](number, wanted)
    if test not in ("=", "==", "!="):
        why = f"found '{printable(str(value), 40)}'" if number is None else f"'{printable(asked, 40)}' is not a number"
        raise UserError("< and > only compare numbers", where=flag, why=why, do="write = or !=")
    return _TESTS[test](str(value), asked)


def _number(value: float | str) -> float | None:
    try:
        return float(value)
    except ValueError:
        return None


def ordered(rows: Sequence[Row], key: str) -> list[Row]:
    """Best first: by less where less is better, by more of other figures, by text; rows without it come last.

    A `-` before the key turns the order round.
    """
    turned = key.startswith("-")
    key = check_key(key.removeprefix("-"), rows, "--sort")
    known = [(v, row) for row in rows if (v := value_of(row, key)) is not None]
    text = any(isinstance(v, str) and _number(v) is None for v, _ in known)
    more = not text and not less_is_better(key) and all(isinstance(v, float) for v, _ in known)
    known.sort(key=lambda pair: str(pair[0]) if text else _number(pair[0]), reverse=more != turned)  # type: ignore
    return [row for _, row in known] + [row for row in rows if value_of(row, key) is None]


def less_is_better(key: str) -> bool:
    """Whether a figure of this name is better when it is less."""
    return _LESS_IS_BETTER.search(key) is not None
