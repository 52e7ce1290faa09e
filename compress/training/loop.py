"""The one training loop. In order, for every step:

    stop asked for?  → save, raise Stopped
    validation due?  → validate (its randomness is its own), keep the weights if they are the best
    checkpoint due?  → save
    micro-batches    → forward, weighed by their share of the step's counts, backward
    gradient norm    → clip; loss or norm not finite → the step is skipped on the device
    optimizer step   → log, progress

A run that is stopped or killed anywhere and resumed ends with the same bits as one that was not, on the same CPU.
Kernels of CUDA add in any order, so that on a GPU the results are equal up to rounding, unless `deterministic` is on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import Literal, NoReturn

import torch
from torch import nn

from compress.contracts import BatchSource, TrainingPlan, name_metric
from compress.errors import Stopped
from compress.training import memory, precision, rng
from compress.training.context import TrainingContext, TrainResult
from compress.training.deterministic import report_nondeterministic
from compress.training.distributed import Alone
from compress.training.efficiency import Efficiency
from compress.training.horizon import Horizon
from compress.training.identity import describe_environment, describe_settings
from compress.training.keeper import Keeper, NullMonitor
from compress.training.meter import Meter, StepReport
from compress.training.optimizer import Optimizer
from compress.training.prefetch import Prefetch
from compress.training.ranks import ONE_COUNT, require_one_process
from compress.training.rehearsal import Rehearsal
from compress.training.state import TrainState
from compress.training.step import StepMaker
from compress.training.threads import preserve_threads
from compress.training.validation import Validator


def train(module: nn.Module, source: BatchSource, plan: TrainingPlan, context: TrainingContext) -> TrainResult:
    """Train `module` (a `Trainable`, e.g. StageModule) in place to the end of `plan`.

    Raises Stopped when the context's stop flag is set (state saved), and UserError for: checkpoints that are there
    without `resume`, or that belong to another run (refused); no valid checkpoint, or numbers gone bad (data); too
    little disk or memory (resources).
    """
    with preserve_threads():
        run = _Run(module, source, plan, context)
        with precision.allow_tf32(run.precision, run.device), report_nondeterministic():
            return run.run()


class _Run:
    def __init__(self, module: nn.Module, source: BatchSource, plan: TrainingPlan, context: TrainingContext) -> None:
        self.whole, self.plan, self.context = source, plan, context
        self.team = context.team or Alone()
        self.device = context.device
        self.source = Prefetch(self.team.take_share(source, plan.batch_rows), self.device)
        self.precision: precision.Resolved = precision.resolve(context.precision or plan.precision, self.device)
        self.module = module.to(self.device)
        self.horizon = Horizon(plan, source, context)
        self.epoch_steps = 0
        self.threads: int | Literal["auto"] | None = plan.threads if context.threads is None else context.threads
        if isinstance(self.threads, int):
            torch.set_num_threads(self.threads)
        elif self.threads == "auto":
            require_one_process("auto", "training.threads", ONE_COUNT)
        if plan.minutes is not None:
            require_one_process("a time limit", "training.minutes", "set steps or epochs")
        self.efficiency = Efficiency(self.module, self.device, self.precision, is_alone=context.team is None)
        self.state = TrainState(self.module, Optimizer(self.module, plan), self.device)
        self.meter = Meter(self.state, plan.max_bad_steps, self.efficiency.peak)
        self.keeper = self._keeper()
        self.validator = Validator(self.state, self.keeper, self.team, context)
        self.steps = StepMaker(
            self.module, self.state.optimizer, self.team, self.precision, self.device, self.keeper.await_copy
        )
        if plan.cuda_graphs:
            longest: int | None = getattr(source, "longest", None)
            say = None if plan.cuda_graphs == "auto" else context.say
            self.steps.use_graphs(self.source, longest, plan.batch_rows, say)

    # --- the course of a run ---

    def run(self) -> TrainResult:
        try:
            return self._run()
        except BaseException as error:
            self.team.report(error)
            raise
        finally:
            self.source.close()
            self.keeper.close()
            self.team.release()

    def _run(self) -> TrainResult:
        if self.device.type == "cpu":
            memory.keep_pages()
        rng.seed(self.context.seed)
        if self.plan.validate_start:
            self.state.validated = -1  # of a run that goes on, the checkpoint knows
        notes = self.keeper.start(self.context.resume)
        for note in notes:
            self.context.log.tags({"compress.resumed": note})
        self.team.align(self.state, self._terms, self._identity())
        self.horizon.update(self.state.history)
        self.epoch_steps = self.source.steps(self.state.epoch)
        self.module.train()
        rehearsal = Rehearsal(self.state, self.steps, self.source, self.horizon, self.keeper, self.context)
        rehearsal.set_threads(self.threads)
        rehearsal.limit_time(self.plan, None if self.context.validate is None else self._ask_validation)
        memory.forget_peak(self.device)
        self.efficiency.energy.start()
        while True:
            self._boundary()
            if self.state.step >= self.horizon.total:
                return self._finish(notes)
            self._step()

    def _boundary(self) -> None:
        """Between two steps: everything that may happen there."""
        state, total = self.state, self.horizon.total
        self.keeper.collect()
        self._stop_if_asked()
        if state.step >= total:
            self.meter.require_good_step()
        if self.horizon.is_validation_due(state.step, state.validated, ends_epoch=state.index == 0):
            self._validate()
        is_last = state.step >= self.horizon.total
        if is_last or (state.step and state.step % self.plan.checkpoint_every == 0):
            self._save(wait=is_last)
        self._stop_if_asked()

    def _step(self) -> None:
        state, plan, began = self.state, self.plan, time.perf_counter()
        total = self.horizon.total
        batches = self.source.step(state.epoch, state.index, total - state.step - 1)
        rate = self.horizon.compute_rate(state.step)
        self.steps.set_pace(state.step, total)
        self.team.seed(self.context.seed, state.step)
        kept = self.keeper.last.name if self.keeper.last else None
        stop = bool(self.context.stop.requested)
        with memory.report_out_of_memory(batches, self.device, kept):
            made, waits = self.efficiency.watch(lambda: self.steps.make_step(batches, rate, stop=stop))
        self._advance()
        rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(batch.row_ids for batch in made.real)])
        operations = self.efficiency.count_operations(made.real)
        self.meter.add(StepReport(state.step, made.figures, rows, made.tokens, operations, waits))
        self.meter.spend(time.perf_counter() - began)
        log_now = state.step % plan.log_every == 0 or state.step == total
        if log_now or self.device.type == "cpu":
            self._drain()
        if log_now:
            self.context.log.metrics({**self.meter.line(rate), **memory.read_gpu(self.device)}, state.step)
        self._tell()

    def _advance(self) -> None:
        state = self.state
        state.step += 1
        state.index += 1
        if state.index >= self.epoch_steps:
            state.epoch, state.index = state.epoch + 1, 0
            self.epoch_steps = self.source.steps(state.epoch)

    def _drain(self) -> None:
        """Wait for the steps so far: what they took is known then."""
        began = time.perf_counter()
        try:
            self.meter.drain(str(self.keeper.last) if self.keeper.last else None)
        finally:
            self.meter.spend(time.perf_counter() - began)
        self.meter.add_energy(self.efficiency.energy.take())

    def _tell(self) -> None:
        """Progress; a session that was resumed at the very end has made no step, and knows no loss."""
        loss = {"loss": self.meter.last_loss} if math.isfinite(self.meter.last_loss) else {}
        self.context.progress.update(self.state.step, **loss, **{"tokens/s": self.meter.tokens_per_second})

    def _finish(self, notes: Sequence[str]) -> TrainResult:
        self.team.finish()
        if (graphs := self.steps.summarize_graphs()) is not None:
            self.context.say(graphs)
        self.keeper.restore_best()
        self.module.eval()
        state, best = self.state, self.state.best
        self._tell()
        if best is not None and best.step == 0 < state.step:
            self.context.say("validation never improved: the result has the weights from before training")
        elif best is not None and best.step < state.step and self.context.select is not None:
            name, mode = self.context.select
            course = (
                f"validation {name_metric(name)} did not {'rise' if mode == 'max' else 'fall'} after step {best.step:,}"
            )
            self.context.say(f"{course}: the result has the weights of that step")
        if state.joules:
            self.context.log.metrics({"energy/training_joules": state.joules})
        return TrainResult(
            steps=state.step,
            seconds=state.seconds,
            tokens=state.tokens,
            skipped_steps=state.bad_steps,
            best_step=best.step if best else None,
            best=best.metrics if best else {},
            last={name: v for name, v in state.history[-1].items() if name != "step"} if state.history else {},
            history=state.history,
            end=self.horizon.explain_end(state.step),
            stopped=self.horizon.has_stopped,
            notes=notes,
        )

    # --- validating, saving, stopping ---

    def _validate(self) -> None:
        self._drain()
        self.source.settle()  # who validates may read the same rows
        metrics = self.team.lead(self._ask_validation)
        self.validator.note(metrics, keep_best=self.plan.keep_best)
        self.horizon.update(self.state.history)
        self.efficiency.energy.start()

    def _ask_validation(self) -> dict[str, float]:
        try:
            return self.validator.measure()
        except Stopped:
            if self.team.lost:
                raise
            self._stop(" during validation")

    def _save(self, *, wait: bool) -> bool:
        self._drain()
        is_saved = self.keeper.save(wait=wait)
        self.efficiency.energy.start()
        return is_saved

    def _stop_if_asked(self) -> None:
        if self.team.agree_to_stop(bool(self.context.stop.requested)):
            self._stop()

    def _stop(self, when: str = "") -> NoReturn:
        asked = self.context.stop.requested
        here = f"stopped by {asked}" if isinstance(asked, str) else "stopped"
        here += f"{when} after step {self.state.step} of {self.horizon.total}"
        if self._save(wait=True):
            raise Stopped(f"{here}; the state is saved")
        kept = self.keeper.last.name if self.keeper.last else "the beginning"
        raise Stopped(f"{here}; the state could not be saved, training will continue from {kept}")

    def _keeper(self) -> Keeper | NullMonitor:
        team = self.context.team
        if team is not None and not team.place.leads:
            return NullMonitor(self.state)
        here = describe_environment(self.precision, self.context)
        keeper = Keeper(self.context.folder, self.plan.keep_checkpoints, self.state, self._identity(), here)
        keeper.requested_threads = self.threads
        return keeper

    def _terms(self) -> list[str]:
        """Names of the terms of the loss, of which a process without rows cannot tell."""
        return list(self.steps.count_terms(self.whole.step(0, 0)[0]))

    def _identity(self) -> dict[str, str]:
        return describe_settings(self.plan, self.source.fingerprint, self.horizon.describe(), self.context)
