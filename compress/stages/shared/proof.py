"""A bound of the accuracy lost that validation rows prove for other texts: what may be asked for, how many rows that
takes, and how it is told. It is of accuracy, whatever the main metric is: the test counts rows whose answer becomes
wrong. The rule is `evaluation.learn_then_test`."""

from __future__ import annotations

from compress.errors import UserError, format_count
from evaluation.learn_then_test import count_known_rows_needed

SPLIT = "validation"
"""The rows that what is chosen is proposed and tested on."""


def require_enough_rows(rows: int, max_drop: float, confidence: float, where: str) -> None:
    """Raise UserError unless so many validation rows can prove a loss of `max_drop` points. where: it was given.

    A bound of 0 is always allowed: only what is proven to be better is within it.
    """
    needed = count_known_rows_needed(max_drop, confidence / 100)
    if max_drop > 0 and rows < needed:
        raise UserError(
            f"{rows:,} validation rows cannot prove a loss of accuracy below {format_points(max_drop)}", where=where,
            why=f"{needed:,} are needed at {confidence:g} % confidence, if no row is lost",
            do=f"give more validation rows, or a larger {where}",
        )  # fmt: skip


def format_points(points: float) -> str:
    """`1 point`, `0.5 points`."""
    return f"{points:g} point{'' if points == 1 else 's'}"


def describe_bound(max_drop: float, confidence: float, models: str) -> str:
    """What is proven of a choice, and for which models. models: `the model was`, `the models were`."""
    lost = f"at most {format_points(max_drop)} of accuracy {'is' if max_drop == 1 else 'are'} lost"
    where = f"on texts like the {SPLIT} rows, if {models} not chosen on these rows"
    return f"with {confidence:g} % confidence, {lost} {where}"


def describe_tests(what: str, order: str, rows: int, testing: int, tested: int, p_value: float) -> str:
    """How it was proven. what: was proposed.  order: of the proposals, such as `from the safest to the boldest`.  rows:
    of validation.  testing: of these, the rows that tested.  tested: proposals that were.  p_value: of the choice."""
    proposing = f"{rows - testing:,} of {format_count(rows, SPLIT + ' row')} proposed {what} {order}"
    return (
        f"{proposing}, and the other {testing:,} tested {tested:,} of them in this order. The method is learn then "
        f"test, with an exact paired test: p = {p_value:.3f}"
    )
