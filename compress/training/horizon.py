"""The end of a training as far as it is known: its number of steps, the learning rate of each, and what ended it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from compress.contracts import BatchSource, TrainingPlan, name_metric
from compress.errors import UserError
from compress.training.context import TrainingContext
from compress.training.length import End, Mode, choose_length, find_end, find_validation_gap, is_validation_due
from compress.training.schedule import learning_rate, open_ended_rate, total_steps
from compress.training.time_limit import format_minutes, limit_length


class Horizon:
    """Of one training by `plan` on `source`. A training of automatic length learns its end from its validations."""

    def __init__(self, plan: TrainingPlan, source: BatchSource, context: TrainingContext) -> None:
        self._plan, self._context = plan, context
        self.length = choose_length(plan, source.steps(0)) if plan.is_automatic else None
        """The bounds of a training of automatic length."""
        self.total = total_steps(plan, source)
        self._end = End(self.total, self.total, stopped=False)
        self._timed_out = False

    @property
    def has_stopped(self) -> bool:
        """Whether the training ends because its metric stopped improving."""
        return self._end.stopped

    def describe(self) -> str:
        """How many steps were asked for, as they stand in a checkpoint; asked before `limit` and `update`."""
        return str(self.total) if self.length is None else str(self.length)

    def compute_rate(self, step: int) -> float:
        """The learning rate of the step of this number, from 0."""
        if self.length is None:
            return learning_rate(self._plan, step, self.total)
        return open_ended_rate(self._plan, step, self.length, self._end)

    def is_validation_due(self, step: int, validated: int, *, ends_epoch: bool) -> bool:
        """Whether the model is validated after so many steps. validated: the step of the validation before."""
        if self._context.validate is None or step == validated:
            return False
        if self.length is not None:
            is_due = is_validation_due(step, validated, self.length)
        else:
            every = self._plan.validate_every
            is_apart = step == 0 or step - validated >= find_validation_gap(self.total)
            is_due = ends_epoch and is_apart if every is None else step % every == 0
        return is_due or step >= self.total

    def update(self, history: Sequence[Mapping[str, float]]) -> None:
        """Find the end of a training of automatic length, by its validations so far. Raises UserError where there is
        nothing to find it by."""
        if self.length is None:
            return
        watched: dict[str, Mode] = {**self._context.watched}
        if self._context.select is not None:
            watched[self._context.select[0]] = self._context.select[1]
        if not self.length.is_fixed and (self._context.validate is None or not watched):
            raise UserError(
                "the length of training cannot be found", where="training", why="nothing is validated",
                do="set steps or epochs",
            )  # fmt: skip
        self._end = find_end(history, self.length, watched)
        self.total = self._end.total

    def limit(self, steps: int, history: Sequence[Mapping[str, float]]) -> bool:
        """No more steps than fit into the plan's time limit; whether that is fewer than before."""
        self._timed_out = steps < self.total
        if self.length is not None:
            self.length = limit_length(self.length, steps)
            self.update(history)
        else:
            self.total = min(self.total, steps)
            self._end = End(self.total, self.total, stopped=False)
        return self._timed_out

    def explain_end(self, steps: int) -> str:
        """Why a training ended after so many steps, for people; nothing where the plan says it."""
        if self._timed_out and not self._end.stopped:
            assert self._plan.minutes is not None
            return f"trained {steps:,} steps: as many as fit into {format_minutes(self._plan.minutes)}"
        if self.length is None or self.length.is_fixed:
            return ""
        if self._end.stopped:
            name, mode = self._context.select or ("", "")
            name = name_metric(name)
            stopped = {"max": f"{name} stopped rising", "min": f"{name} stopped falling"}.get(mode, "stopped improving")
            why = f"validation {stopped} by step {self._end.decay:,}"
        else:
            why = f"the maximum of {self.length.most:,} steps was reached"
        return f"trained {steps:,} steps: {why}"
