"""How long a training without `epochs` and `steps` lasts: a pure function of its validations.

Warm-up, a constant learning rate while the validation metric rises, then a decay to 0 over the last part of the steps
(warmup-stable-decay: MiniCPM, arXiv 2404.06395, section 4; Haegele et al., arXiv 2405.18392). Unlike a linear or cosine
schedule it need not know its end at the beginning. There is nothing to save: the validations are in the checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from compress.contracts import TrainingPlan, name_metric

Mode = Literal["max", "min"]

DECAY = 0.25
"""Share of all steps in which the learning rate falls."""
PATIENCE = 3
"""Validations in a row without a rise after which the rate falls."""
RISE = 0.001
"""Least rise of a metric that counts: 0.1 percentage points."""
FALL = 0.01
"""Least relative fall of a loss that counts."""
GROWTH = 8
"""Validations grow apart: the next one is after an eighth of the steps done, so that a slow rise shows between two."""
LEAST, LEAST_OF_LARGE = 200, 500
MOST, MOST_OF_LARGE = 1000, 10_000
LEAST_EPOCHS, MOST_EPOCHS = 2, 10
INTERVALS = 8
"""Validations in the least number of steps."""


@dataclass(frozen=True)
class Length:
    """Bounds of a training. least, most: optimizer steps.  first: steps to the first validation.  every: steps between
    validations where a person chose them, else None: they grow apart."""

    least: int
    most: int
    first: int
    every: int | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether the number of steps is known before training."""
        return self.least == self.most

    def __str__(self) -> str:
        return f"{self.most:,} steps" if self.is_fixed else f"{self.least:,} to {self.most:,} steps"


@dataclass(frozen=True)
class End:
    """Where the learning rate begins to fall, and how many steps there are. stopped: because nothing rose any more;
    else the most steps are used up."""

    decay: int
    total: int
    stopped: bool


def choose_length(plan: TrainingPlan, epoch_steps: int) -> Length:
    """The bounds of a plan without epochs and steps. epoch_steps: optimizer steps of one pass over the data.

    Two to ten epochs, but 200 to 1,000 steps on small data; on large data 500 steps to 10,000, or one epoch where that
    is more.
    """
    least = min(max(LEAST, LEAST_EPOCHS * epoch_steps), LEAST_OF_LARGE)
    most = min(max(MOST, MOST_EPOCHS * epoch_steps), max(MOST_OF_LARGE, epoch_steps))
    if plan.min_steps is not None:
        least = plan.min_steps
        most = max(most, least)
    if plan.max_steps is not None:
        most = plan.max_steps
        least = min(least, most)
    return Length(least, most, max(1, least // INTERVALS), plan.validate_every)


def fixed_length(plan: TrainingPlan, epoch_steps: int) -> int:
    """Steps of a training without epochs and steps whose end must be known before it begins: three epochs, within the
    bounds."""
    length = choose_length(plan, epoch_steps)
    return min(max(3 * epoch_steps, length.least), length.most)


def find_end(history: Sequence[Mapping[str, float]], length: Length, watched: Mapping[str, Mode]) -> End:
    """What the validations so far say of the end of training.

    history: one row per validation, in order: `step` and metrics.  watched: metric → whether more or less is better. As
    long as one of them gets better, training goes on; one that is not finite, or missing, does not.
    """
    last = _before_decay(length.most)
    best: dict[str, float] = {}
    misses = 0
    for row in history:
        step = int(row["step"])
        if step > last:
            break
        rose = False
        for name, mode in watched.items():
            value = row.get(name, math.nan)
            if math.isfinite(value) and (name not in best or is_better(value, best[name], mode)):
                best[name], rose = value, True
        misses = 0 if rose else misses + 1
        if misses >= PATIENCE and step >= max(1, _before_decay(length.least)):
            return End(step, max(length.least, math.ceil(step / (1 - DECAY))), stopped=True)
    return End(last, length.most, stopped=False)


def _before_decay(total: int) -> int:
    """The step at which the rate begins to fall, of so many."""
    return total - math.ceil(DECAY * total)


def is_better(value: float, best: float, mode: Mode) -> bool:
    """Whether a figure is better by more than its noise: a metric by 0.001, a loss by 1 %."""
    return value > best + RISE if mode == "max" else value < best - FALL * abs(best)


def is_validation_due(step: int, validated: int, length: Length) -> bool:
    """Whether the model is validated after `step`. validated: the step of the validation before, 0 for none."""
    if length.every is not None:
        return step % length.every == 0
    return step >= find_next_validation(max(validated, 0), length)


MOST_EPOCH_ENDS = 20
"""Ends of epochs at which a training of fixed length is validated, at most: of few rows, an epoch is over sooner than a
validation."""


def find_validation_gap(total: int) -> int:
    """Steps from one validation at the end of an epoch to the next one, at least. total: steps of the training."""
    return total // MOST_EPOCH_ENDS


def find_next_validation(validated: int, length: Length) -> int:
    """The step of the validation after the one at step `validated`, 0 for none, where they grow apart."""
    return validated + max(length.first, validated // GROWTH)


UNFINISHED_SHARE = 0.75
"""The last validation is compared with the last one in this share of the steps."""
UNFINISHED_RISE, UNFINISHED_FALL = 0.01, 0.05
"""What a metric must rise by in the rest, and the share that a loss must fall by, for a training that ended early."""


def describe_unfinished(history: Sequence[Mapping[str, float]], name: str, mode: Mode) -> str | None:
    """What says that more steps would have helped: the metric was still getting better in the last quarter of the
    steps, and was never better than at the end. None where it was not, or was validated too seldom to know."""
    rows = [(int(row["step"]), row[name]) for row in history if math.isfinite(row.get(name, math.nan))]
    if not rows:
        return None
    last, now = rows[-1]
    earlier = [(step, value) for step, value in rows[:-1] if 0 < step <= UNFINISHED_SHARE * last]
    if not earlier or any(is_better(value, now, mode) for _, value in rows[:-1]):
        return None
    step, before = earlier[-1]
    enough = now > before + UNFINISHED_RISE if mode == "max" else now < before * (1 - UNFINISHED_FALL)
    if not enough:
        return None
    how = "rising" if mode == "max" else "falling"
    what = f"validation {name_metric(name)} was still {how} at the end"
    return f"{what}: {before:.4g} after step {step:,}, {now:.4g} after {last:,}"
