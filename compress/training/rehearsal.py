"""Steps that are made only to be timed, before the first one: what they change is put back."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch

from compress.contracts import TrainingPlan
from compress.errors import format_count
from compress.training import memory, rng
from compress.training.context import TrainingContext
from compress.training.horizon import Horizon
from compress.training.keeper import Keeper, NullMonitor
from compress.training.prefetch import Prefetch
from compress.training.state import TrainState, load_model, model_tensors
from compress.training.step import StepMaker
from compress.training.threads import ThreadChoice, choose_threads
from compress.training.time_limit import count_steps_in_time, count_validations, format_minutes, time_steps


class Rehearsal:
    """Times steps of a training that begins; for one that goes on, the checkpoint knows what was chosen then."""

    def __init__(
        self,
        state: TrainState,
        steps: StepMaker,
        source: Prefetch,
        horizon: Horizon,
        keeper: Keeper | NullMonitor,
        context: TrainingContext,
    ) -> None:
        self._state, self._steps, self._source = state, steps, source
        self._horizon, self._keeper, self._context = horizon, keeper, context

    def set_threads(self, requested: int | Literal["auto"] | None) -> None:
        """torch's number of threads: that of the checkpoint, or what `auto` chooses."""
        chosen = self._keeper.chosen_threads
        if chosen is not None:
            torch.set_num_threads(chosen)
            self._context.say(f"training goes on with {format_count(chosen, 'thread')}, as it began")
        elif requested == "auto":
            assert isinstance(self._keeper, Keeper)
            choice = self._choose_threads()
            torch.set_num_threads(choice.threads)
            self._keeper.set_threads(choice.threads)
            self._context.say(str(choice))
            self._context.log.params({"training.threads": choice.threads})

    def limit_time(self, plan: TrainingPlan, validate: Callable[[], object] | None) -> None:
        """No more steps than the plan's time limit allows: those of the checkpoint, or what a few timed steps say.

        validate: what a validation computes; None where there is none. Raises UserError where no step fits.
        """
        minutes, steps = plan.minutes, self._keeper.chosen_steps
        if minutes is None:
            return
        if steps is None:
            assert isinstance(self._keeper, Keeper)
            steps = self._count_steps_in_time(plan, 60 * minutes, validate)
            self._keeper.chosen_steps = steps
        before = self._horizon.total
        if self._horizon.limit(steps, self._state.history):
            self._context.say(f"time limit of {format_minutes(minutes)}: at most {steps:,} of up to {before:,} steps")
            self._context.log.params({"training.steps_in_time": steps})

    def _choose_threads(self) -> ThreadChoice:
        """Time a few steps with one thread and with all."""
        if self._state.device.type != "cpu":
            return ThreadChoice(torch.get_num_threads(), "they are compared on the CPU only")
        with self._open() as make_step:
            return choose_threads(make_step, self._horizon.total, self._context.clock, stopped=self._is_stopped)

    def _count_steps_in_time(self, plan: TrainingPlan, limit: float, validate: Callable[[], object] | None) -> int:
        """limit: seconds."""
        epoch_steps = self._source.steps(0)
        with self._open() as make_step:
            untimed = self._steps.count_warm_ups()
            times = time_steps(make_step, validate, limit, self._read_clock, untimed=untimed, stopped=self._is_stopped)
        validations = functools.partial(count_validations, plan, self._horizon.length, epoch_steps)
        return count_steps_in_time(times, limit, self._horizon.total, validations)

    @contextmanager
    def _open(self) -> Iterator[Callable[[int], None]]:
        """Gives what makes a step on the batch of a number, and puts everything back as it was afterwards."""
        state = self._state
        weights = {name: tensor.clone() for name, tensor in model_tensors(state.module).items()}
        with self._steps.rehearse_graphs(), rng.preserve_generators(state.device):
            yield self._make_step
        load_model(state.module, weights)
        state.optimizer.forget()

    def _make_step(self, number: int) -> None:
        batches = self._source.step(0, number % self._source.steps(0))
        self._steps.set_pace(number, self._horizon.total)
        rate = self._horizon.compute_rate(self._state.step)
        with memory.report_out_of_memory(batches, self._state.device):
            self._steps.make_step(batches, rate, stop=self._is_stopped())

    def _read_clock(self) -> float:
        """Seconds, when all steps so far are computed."""
        if self._state.device.type == "cuda":
            torch.cuda.synchronize(self._state.device)
        return self._context.clock()

    def _is_stopped(self) -> bool:
        return bool(self._context.stop.requested)
