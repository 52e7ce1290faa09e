"""The number of steps that fit into a time limit, by steps and a validation that are timed before the first step.

The learning rate needs to know the end of training, and a run that goes on must end where it would have: so the limit
becomes a number of steps once, and that is kept in the checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from compress.contracts import TrainingPlan
from compress.errors import UserError
from compress.training.length import Length, find_next_validation, find_validation_gap

ROUNDS, MAX_ROUNDS = 3, 50
"""Steps that are timed: at least and at most."""
SHARE = 0.02
"""Share of the limit after which no more steps are timed."""
UNTIMED_SHARE = 0.1
"""Share of the limit after which no more steps are made before those that are timed, the first one apart."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds of a step, of a validation, and of all that was timed."""

    step: float
    validation: float
    spent: float


def time_steps(
    make_step: Callable[[int], None],
    validate: Callable[[], object] | None,
    limit: float,
    clock: Callable[[], float],
    *,
    untimed: int = 1,
    stopped: Callable[[], bool] = lambda: False,
) -> StepTimes:
    """Time some training steps and a validation. make_step: makes a step on the batch of this number; up to `untimed`
    times before those that are timed.  limit: seconds.  clock: seconds.  stopped: whether to end early."""
    begin = clock()
    if validate is not None:  # before the steps: a stop saves the weights as they are
        validate()
    validation = clock() - begin
    make_step(0)  # what is loaded, reserved and captured at the first steps is not timed
    start = clock()
    for number in range(1, untimed):
        if stopped() or clock() - start > UNTIMED_SHARE * limit:
            break
        make_step(number)
    start, count = clock(), 0
    while count < MAX_ROUNDS and not (count and stopped()):
        make_step(count)
        count += 1
        if count >= ROUNDS and clock() - start > SHARE * limit:
            break
    end = clock()
    return StepTimes((end - start) / count, validation, end - begin)


def count_steps_in_time(times: StepTimes, limit: float, most: int, validations: Callable[[int], int]) -> int:
    """The most steps, up to `most`, that end within `limit` seconds with their validations. validations: steps → how
    many.

    Raises UserError where not even one does.
    """
    left = limit - times.spent
    steps, above = 0, most + 1  # by halves: more steps never have fewer validations
    while above - steps > 1:
        middle = (steps + above) // 2
        fits = middle * times.step + validations(middle) * times.validation <= left
        steps, above = (middle, above) if fits else (steps, middle)
    if not steps:
        validated = f", a validation {times.validation:.3g} s" if times.validation else ""
        raise UserError(
            f"no training step fits into the time limit of {format_minutes(limit / 60)}", where="training.minutes",
            why=f"timing them took {times.spent:.3g} s, a step takes {times.step:.3g} s{validated}",
            do="raise it, or reduce batch_rows",
        )  # fmt: skip
    return steps


def count_validations(plan: TrainingPlan, length: Length | None, epoch_steps: int, steps: int) -> int:
    """Validations of a training of so many steps, the one at its end among them. length: of one whose end is found,
    else None."""
    every = plan.validate_every
    if every is None and length is None:
        every = epoch_steps * max(1, math.ceil(find_validation_gap(steps) / epoch_steps))
    if every is not None:
        return math.ceil(steps / every)
    assert length is not None
    done, found = 0, 0
    while done < steps:
        done, found = min(find_next_validation(done, length), steps), found + 1
    return found


def format_minutes(minutes: float) -> str:
    """`30 minutes`, `20 s`, for people."""
    return f"{minutes:g} minutes" if minutes > 1 else f"{60 * minutes:.3g} s"


def limit_length(length: Length, steps: int) -> Length:
    """The same bounds with no more than `steps` steps."""
    return Length(min(length.least, steps), min(length.most, steps), min(length.first, steps), length.every)
