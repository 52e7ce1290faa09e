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

import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NoReturn, cast

import torch
from torch import Tensor, nn

from compress.contracts import Batch, BatchSource, TrainingPlan
from compress.errors import Stopped, UserError
from compress.training import environment, memory, precision, rng
from compress.training.context import TrainingContext, TrainResult
from compress.training.deterministic import report_nondeterministic
from compress.training.distributed import Alone
from compress.training.efficiency import Efficiency
from compress.training.fixed_sizes import FixedSizes, find_padding_obstacle
from compress.training.graphed import GraphedSteps, find_obstacle
from compress.training.keeper import Keeper, NullMonitor
from compress.training.length import End, Mode, choose_length, find_end, is_validation_due
from compress.training.meter import LOSS, NORM, Meter, StepReport
from compress.training.module import StageModule, Term, Trainable
from compress.training.optimizer import Optimizer
from compress.training.prefetch import Prefetch
from compress.training.ranks import ONE_COUNT, require_one_process
from compress.training.schedule import learning_rate, open_ended_rate, total_steps
from compress.training.state import TrainState, load_model, model_tensors
from compress.training.threads import ThreadChoice, choose_threads, format_threads, preserve_threads
from compress.training.time_limit import (
    count_steps_in_time,
    count_validations,
    format_minutes,
    limit_length,
    time_steps,
)

# What of the plan may change between a run and its continuation without changing the weights; precision and threads are
# a part of the environment instead, since `auto` says different things on different machines.
_FREE = {"checkpoint_every", "keep_checkpoints", "log_every", "max_bad_steps", "precision", "threads"}


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
        self.length = choose_length(plan, source.steps(0)) if plan.is_automatic else None
        self.total = total_steps(plan, source)
        self.end = End(self.total, self.total, stopped=False)
        self.pace: Callable[[int, int], None] | None = getattr(module, "pace", None)
        self.epoch_steps = 0
        self.threads: int | Literal["auto"] | None = plan.threads if context.threads is None else context.threads
        if isinstance(self.threads, int):
            torch.set_num_threads(self.threads)
        elif self.threads == "auto":
            require_one_process("auto", "training.threads", ONE_COUNT)
        if plan.minutes is not None:
            require_one_process("a time limit", "training.minutes", "set steps or epochs")
        self.timed_out = False
        self.efficiency = Efficiency(self.module, self.device, self.precision, is_alone=context.team is None)
        self.state = TrainState(self.module, Optimizer(self.module, plan), self.device)
        self.meter = Meter(self.state, plan.max_bad_steps, self.efficiency.peak)
        self.keeper = self._keeper()
        self.graphs = self._choose_graphs()

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
        self._find_end()
        self.epoch_steps = self.source.steps(self.state.epoch)
        self.module.train()
        self._set_threads()
        self._limit_time()
        memory.forget_peak(self.device)
        self.efficiency.energy.start()
        while True:
            self._boundary()
            if self.state.step >= self.total:
                return self._finish(notes)
            self._step()

    def _boundary(self) -> None:
        """Between two steps: everything that may happen there."""
        self.keeper.collect()
        self._stop_if_asked()
        if self.state.step >= self.total:
            self.meter.require_good_step()
        if self._validation_due():
            self._validate()
        is_last = self.state.step >= self.total
        if is_last or (self.state.step and self.state.step % self.plan.checkpoint_every == 0):
            self._save(wait=is_last)
        self._stop_if_asked()

    def _finish(self, notes: Sequence[str]) -> TrainResult:
        self.team.finish()
        if self.graphs is not None:
            self.context.say(self.graphs.summarize())
        self.keeper.restore_best()
        self.module.eval()
        state, best = self.state, self.state.best
        self._tell()
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
            end=self._told_end(),
            stopped=self.end.stopped,
            notes=notes,
        )

    def _set_threads(self) -> None:
        """Those of the checkpoint of a run that goes on; of one that begins, what `auto` chooses."""
        chosen = self.keeper.chosen_threads
        if chosen is not None:
            torch.set_num_threads(chosen)
            self.context.say(f"training goes on with {format_threads(chosen)}, as it began")
        elif self.threads == "auto":
            assert isinstance(self.keeper, Keeper)
            choice = self._choose_threads()
            torch.set_num_threads(choice.threads)
            self.keeper.set_threads(choice.threads)
            self.context.say(str(choice))
            self.context.log.params({"training.threads": choice.threads})

    def _choose_threads(self) -> ThreadChoice:
        """Time a few steps with one thread and with all."""
        if self.device.type != "cpu":
            return ThreadChoice(torch.get_num_threads(), "they are compared on the CPU only")
        stop = self.context.stop
        with self._rehearse() as make_step:
            return choose_threads(make_step, self.total, self.context.clock, stopped=lambda: bool(stop.requested))

    def _limit_time(self) -> None:
        """No more steps than the time limit allows: those of the checkpoint of a run that goes on; of one that begins,
        what a few timed steps say."""
        minutes, steps = self.plan.minutes, self.keeper.chosen_steps
        if minutes is None:
            return
        if steps is None:
            assert isinstance(self.keeper, Keeper)
            steps = self._count_steps_in_time(60 * minutes)
            self.keeper.chosen_steps = steps
        self.timed_out = steps < self.total
        if self.timed_out:
            self.context.say(
                f"time limit of {format_minutes(minutes)}: at most {steps:,} of up to {self.total:,} steps"
            )
            self.context.log.params({"training.steps_in_time": steps})
        if self.length is not None:
            self.length = limit_length(self.length, steps)
            self._find_end()
        else:
            self.total = min(self.total, steps)
            self.end = End(self.total, self.total, stopped=False)

    def _count_steps_in_time(self, limit: float) -> int:
        """limit: seconds. Raises UserError where no step fits."""
        stop, clock, epoch_steps = self.context.stop, self._clock, self.source.steps(0)
        validate = None if self.context.validate is None else self._ask_validation
        with self._rehearse() as make_step:
            times = time_steps(make_step, validate, limit, clock, stopped=lambda: bool(stop.requested))
        validations = functools.partial(count_validations, self.plan, self.length, epoch_steps)
        return count_steps_in_time(times, limit, self.total, validations)

    def _clock(self) -> float:
        """Seconds, when all steps so far are computed."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return self.context.clock()

    @contextmanager
    def _rehearse(self) -> Iterator[Callable[[int], None]]:
        """Gives what makes a step on the batch of a number, and puts everything back as it was afterwards."""
        weights = {name: tensor.clone() for name, tensor in model_tensors(self.module).items()}

        def make_step(number: int) -> None:
            batches = self.source.step(0, number % self.source.steps(0))
            if self.pace is not None:
                self.pace(number, self.total)
            with memory.report_out_of_memory(batches, self.device):
                self._descend(batches, self._rate())

        graphs, self.graphs = self.graphs, None  # a graph would go on with the moments that are forgotten below
        with rng.preserve_generators(self.device):
            yield make_step
        self.graphs = graphs
        load_model(self.module, weights)
        self.state.optimizer.forget()

    # --- a step ---

    def _step(self) -> None:
        state, plan, began = self.state, self.plan, time.perf_counter()
        batches = self.source.step(state.epoch, state.index, self.total - state.step - 1)
        rate = self._rate()
        if self.pace is not None:
            self.pace(state.step, self.total)
        self.team.seed(self.context.seed, state.step)
        kept = self.keeper.last.name if self.keeper.last else None
        with memory.report_out_of_memory(batches, self.device, kept):
            (figures, tokens), waits = self.efficiency.watch(lambda: self._descend(batches, rate))
        self._advance()
        real = [batch.without_padding for batch in batches]
        rows = torch.cat([torch.zeros(0, dtype=torch.int64), *(batch.row_ids for batch in real)])
        operations = self.efficiency.count_operations(real)
        self.meter.add(StepReport(state.step, figures, rows, tokens, operations, waits))
        self.meter.spend(time.perf_counter() - began)
        log_now = state.step % plan.log_every == 0 or state.step == self.total
        if log_now or self.device.type == "cpu":
            self._drain()
        if log_now:
            self.context.log.metrics({**self.meter.line(rate), **memory.read_gpu(self.device)}, state.step)
        self._tell()

    def _rate(self) -> float:
        if self.length is None:
            return learning_rate(self.plan, self.state.step, self.total)
        return open_ended_rate(self.plan, self.state.step, self.length, self.end)

    def _tell(self) -> None:
        """Progress; a session that was resumed at the very end has made no step, and knows no loss."""
        loss = {"loss": self.meter.last_loss} if math.isfinite(self.meter.last_loss) else {}
        self.context.progress.update(self.state.step, **loss, **{"tokens/s": self.meter.tokens_per_second})

    def _descend(self, batches: Sequence[Batch], rate: float) -> tuple[dict[str, Tensor], int]:
        """Gradients of all micro-batches added exactly, then the optimizer; returns the step's figures and tokens."""
        asked = bool(self.context.stop.requested)
        real = [batch.without_padding for batch in batches]
        totals, tokens = self.team.totals(self._totals(real), sum(batch.tokens for batch in real), asked)
        self.state.optimizer.set_rate(rate)
        if self.graphs is not None:
            self.keeper.await_copy()
            return self.graphs.make_step(batches, totals), tokens
        there = (batch.to(self.device) for batch in batches)
        return self._compute(there, len(batches), totals, self.keeper.await_copy), tokens

    def _compute(
        self, batches: Iterable[Batch], count: int, totals: Mapping[str, int], before_update: Callable[[], None]
    ) -> dict[str, Tensor]:
        """The step on batches that are on the device: nothing in here reads a number of this step from the host, but
        for the counts of a batch without padding. before_update: called before weights change."""
        self.state.optimizer.clear()
        values: dict[str, Tensor] = {}
        loss = torch.zeros((), device=self.device)
        # Until the outermost context ends, autocast keeps its bf16 copies of the weights: one for all micro-batches.
        with precision.autocast(self.precision, self.device):
            for number, batch in enumerate(batches, 1):
                terms = cast(Trainable, self.module)(batch)
                with torch.autocast(self.device.type, enabled=False):
                    shares = _find_shares(batch, terms, totals)
                    loss = loss + self._add_gradients(terms, shares, values, is_last=number == count)
        figures = self.team.add({**values, LOSS: loss}, [*totals, LOSS])
        before_update()
        return {**figures, NORM: self.state.optimizer.step(figures[LOSS])}

    def _add_gradients(
        self, terms: Mapping[str, Term], shares: Mapping[str, Any], values: dict[str, Tensor], *, is_last: bool
    ) -> Tensor | float:
        """Of one micro-batch, in the proportion of its counts; its values are added to `values`, its loss returned."""
        parts = {name: term.value * shares[name] for name, term in terms.items() if term.count}
        if not parts:
            return 0.0
        share = _weighted(parts, terms)
        if is_last:
            self.team.expect_last_gradients()
        share.backward()
        for name, part in parts.items():
            values[name] = values[name] + part.detach() if name in values else part.detach()
        return share.detach()

    def _totals(self, batches: Sequence[Batch]) -> dict[str, int]:
        """What each term counts in the whole step: a micro-batch's mean times its share of that adds up exactly."""
        totals: dict[str, int] = {}
        for batch in batches:
            for name, count in cast(Trainable, self.module).counts(batch).items():
                totals[name] = totals.get(name, 0) + count
        return totals

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

    # --- validation ---

    def _validation_due(self) -> bool:
        state, every = self.state, self.plan.validate_every
        if self.context.validate is None or state.step == state.validated:
            return False
        if self.length is not None:
            on_time = is_validation_due(state.step, state.validated, self.length)
        else:
            on_time = state.index == 0 if every is None else state.step % every == 0
        return on_time or state.step >= self.total

    def _validate(self) -> None:
        self._drain()
        self.source.settle()  # who validates may read the same rows
        metrics = self.team.lead(self._ask_validation)
        state = self.state
        state.validated = state.step
        state.history.append({"step": state.step, **metrics})
        finite = {f"val/{name}": value for name, value in metrics.items() if math.isfinite(value)}
        self.context.log.metrics(finite, state.step)
        self._find_end()
        if self.plan.keep_best and self.context.select is not None:
            self._judge(metrics, *self.context.select)
        self.efficiency.energy.start()

    def _find_end(self) -> None:
        """Whether the validations so far end a training of automatic length, and when."""
        if self.length is None:
            return
        watched: dict[str, Mode] = {**self.context.watched}
        if self.context.select is not None:
            watched[self.context.select[0]] = self.context.select[1]
        if not self.length.is_fixed and (self.context.validate is None or not watched):
            raise UserError(
                "the length of training cannot be found", where="training", why="nothing is validated",
                do="set steps or epochs",
            )  # fmt: skip
        self.end = find_end(self.state.history, self.length, watched)
        self.total = self.end.total

    def _told_end(self) -> str:
        if self.timed_out and not self.end.stopped:
            assert self.plan.minutes is not None
            return f"trained {self.state.step:,} steps: as many as fit into {format_minutes(self.plan.minutes)}"
        if self.length is None or self.length.is_fixed:
            return ""
        if self.end.stopped:
            name, mode = self.context.select or ("", "")
            stopped = {"max": f"{name} stopped rising", "min": f"{name} stopped falling"}.get(mode, "stopped improving")
            why = f"validation {stopped} by step {self.end.decay:,}"
        else:
            why = f"the maximum of {self.length.most:,} steps was reached"
        return f"trained {self.state.step:,} steps: {why}"

    def _ask_validation(self) -> dict[str, float]:
        assert self.context.validate is not None
        self.module.eval()
        try:
            with rng.preserve_generators(self.device), torch.no_grad():
                with self.team.share_rows():
                    metrics = {name: float(value) for name, value in self.context.validate(self.module).items()}
                return {**metrics, **self._ask_observer(metrics)}
        except Stopped:
            if self.team.lost:
                raise
            self._stop(" during validation")
        finally:
            self.module.train()

    def _ask_observer(self, metrics: Mapping[str, float]) -> dict[str, float]:
        if self.context.observe is None or isinstance(self.keeper, NullMonitor):
            return {}
        history = [*self.state.history, {"step": self.state.step, **metrics}]
        return {name: float(value) for name, value in self.context.observe(self.module, history).items()}

    def _judge(self, metrics: dict[str, float], name: str, mode: str) -> None:
        if name not in metrics:
            raise UserError(
                f"unknown metric '{name}' to select by", why=f"validation reports {', '.join(sorted(metrics))}"
            )
        value, best = metrics[name], self.state.best
        if math.isfinite(value) and (best is None or (value > best.value if mode == "max" else value < best.value)):
            self.keeper.offer_best(metrics, value)

    # --- saving and stopping ---

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
        here += f"{when} after step {self.state.step} of {self.total}"
        if self._save(wait=True):
            raise Stopped(f"{here}; the state is saved")
        kept = self.keeper.last.name if self.keeper.last else "the beginning"
        raise Stopped(f"{here}; the state could not be saved, training will continue from {kept}")

    def _keeper(self) -> Keeper | NullMonitor:
        team, plan = self.context.team, self.plan
        if team is not None and not team.place.leads:
            return NullMonitor(self.state)
        here = {**environment.describe(self.device, self.precision), **self.context.environment}
        if team is not None:  # sums are rounded, and dropout drawn, by process
            here["processes"] = str(team.place.world)
        keeper = Keeper(self.context.folder, plan.keep_checkpoints, self.state, self._identity(), here)
        keeper.requested_threads = self.threads
        return keeper

    def _choose_graphs(self) -> GraphedSteps | None:
        """Where the plan asks for them and they can be."""
        if not self.plan.cuda_graphs:
            return None
        if (why := find_obstacle(self.module, self.device, self.context.team is not None)) is not None:
            self.context.say(f"training.cuda_graphs has no effect: {why}")
            return None
        self.state.optimizer.keep_rate_on(self.device)

        def compute(batch: Batch, totals: Mapping[str, int]) -> dict[str, Tensor]:
            return self._compute([batch], 1, totals, lambda: None)

        def compute_plainly(batches: Sequence[Batch], totals: Mapping[str, int]) -> dict[str, Tensor]:
            return self._compute((batch.to(self.device) for batch in batches), len(batches), totals, lambda: None)

        self._fix_sizes()
        return GraphedSteps(compute, compute_plainly, self.device, self.context.say)

    def _fix_sizes(self) -> None:
        """Have steps padded to a few sizes, where they can be."""
        assert isinstance(self.module, StageModule)
        longest: int | None = getattr(self.whole, "longest", None)
        if (why := find_padding_obstacle(self.module, self.plan.batch_rows, longest)) is not None:
            self.context.say(f"training.cuda_graphs: only steps of equal shapes are replayed, since {why}")
            return
        assert longest is not None
        self.source.pad = FixedSizes(self.module.counts, longest).pad

    def _terms(self) -> list[str]:
        """Names of the terms of the loss, of which a process without rows cannot tell."""
        return list(cast(Trainable, self.module).counts(self.whole.step(0, 0)[0]))

    def _identity(self) -> dict[str, str]:
        plan = {f"training.{name}": str(value) for name, value in self.plan.model_dump().items() if name not in _FREE}
        own = {"data": self.source.fingerprint, "seed": str(self.context.seed), "total steps": self._told_length()}
        return {**plan, **own, **self.context.identity}

    def _told_length(self) -> str:
        return str(self.total) if self.length is None else str(self.length)


def _find_shares(batch: Batch, terms: Mapping[str, Term], totals: Mapping[str, int]) -> Mapping[str, Any]:
    """By what the value of each term is multiplied. Of a padded batch, which is its step's only one, on the device."""
    if batch.shares is not None:
        return dict(zip(totals, batch.shares.unbind(), strict=True))
    return {name: term.count / totals[name] for name, term in terms.items() if term.count}


def _weighted(parts: Mapping[str, Tensor], terms: Mapping[str, Term]) -> Tensor:
    """Scalar: the parts times their weights, summed."""
    return torch.stack([part * terms[name].weight for name, part in parts.items()]).sum()
