"""How many steps, the learning rate of each, and what else changes with them: pure functions of the step, so there is
nothing to save."""

from __future__ import annotations

import math

from compress.contracts import BatchSource, TrainingPlan
from compress.errors import ExitCode, UserError
from compress.training.length import End, Length, choose_length


def total_steps(plan: TrainingPlan, source: BatchSource) -> int:
    """Optimizer steps of the whole run, the most where the plan leaves them open. Epochs may differ in length; a part
    of one counts its share, rounded."""
    if source.steps(0) < 1:
        raise UserError(
            "the training data is too small for one step",
            why="no rows are left after reading and encoding",
            do="check the data and its columns",
            code=ExitCode.DATA,
        )
    if plan.steps is not None:
        return plan.steps
    if plan.epochs is None:
        return choose_length(plan, source.steps(0)).most
    whole = math.floor(plan.epochs)
    steps = sum(source.steps(epoch) for epoch in range(whole))
    return max(1, steps + round((plan.epochs - whole) * source.steps(whole)))


def learning_rate(plan: TrainingPlan, step: int, total: int) -> float:
    """Rate of the optimizer step number `step`, counted from 0, of `total`.

    Rises in a line over the warm-up, its last step at the peak, then falls so that the step after the last would be 0:
    no step is spent at rate 0.
    """
    warmup = math.ceil(plan.warmup * total)
    if step < warmup:
        return plan.rate * (step + 1) / warmup
    left = (total - step) / (total - warmup) if total > warmup else 1.0
    return plan.rate * _factor(plan, left)


def open_ended_rate(plan: TrainingPlan, step: int, length: Length, end: End) -> float:
    """Rate of a step of a training that ends when its validations say so: a rise over the warm-up, which is a share of
    the least steps, the peak until the end is near, then down as the plan's schedule falls."""
    warmup = math.ceil(plan.warmup * length.least)
    peak = plan.rate * min(1.0, (step + 1) / warmup) if warmup else plan.rate
    return peak if step < end.decay else peak * _factor(plan, (end.total - step) / (end.total - end.decay))


def _factor(plan: TrainingPlan, left: float) -> float:
    """The share of the peak, with this share of the fall still ahead."""
    return {"linear": left, "cosine": 0.5 - 0.5 * math.cos(math.pi * left), "constant": 1.0}[plan.schedule]


def ramp(done: int, total: int, begin: float, end: float) -> float:
    """0 until the share `begin` of the steps is done, 1 from the share `end` on, a line between; begin < end."""
    return min(1.0, max(0.0, (done / total - begin) / (end - begin)))
